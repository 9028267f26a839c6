"""Objects at a URL: how are they read from and written to any kind of store?

url          the parts of a URL, which may hold no secret
store        the interface of a store
opening      the library that accesses the store of a URL
ahead        objects that are read from front to back
traffic      counts of requests and bytes
cloud        S3, Google Cloud Storage, Azure and the web, through obstore
hub          the Hugging Face Hub
filesystems  any other store, through fsspec
target       the finished files of a data set, each written as an object
apart        a separate process that accesses a store for a process that forks
eagerness    hedged requests: a range first requested with a short timeout
reasons      reasons in words why a request to a store failed
forking      a check that no forked process uses the store of its parent
"""
