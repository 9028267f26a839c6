"""Objects at a URL: how are they read and written, whatever store they are in?

url          what a URL names; no secret may stand in it
store        what Brand needs of a store
opening      which library accesses the store of a URL
ahead        objects that are read from front to back
traffic      requests and bytes, counted
cloud        S3, Google Cloud Storage, Azure and the web, through obstore
hub          the Hugging Face Hub
filesystems  any other store, through fsspec
target       where the finished files of a data set go: each becomes an object
apart        a process of its own that speaks to a store, for one that forks
eagerness    is a range first asked for with little patience?
reasons      in words: why a store did not do what it was asked
forking      a process whose parent has spoken to a store may not
"""
