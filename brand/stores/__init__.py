"""Objects at a URL: how are they read from and written to any kind of store?

url          the parts of a URL, which may hold no secret
store        the interface of a store, counts of requests, and a check that no forked process uses its parent's store
opening      the library that accesses the store of a URL
cloud        S3, Google Cloud Storage, Azure and the web, through obstore
hub          the Hugging Face Hub
filesystems  any other store, through fsspec
target       the finished files of a data set, each written as an object
apart        a separate process that accesses a store for a process that forks
reasons      reasons in words why a request to a store failed
"""
