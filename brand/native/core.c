/* The loops over samples that numpy cannot do in one call: brand.native says which, and what does without them.

   Every function takes many samples at once, checks every bound before it touches memory, and releases the
   interpreter's lock while it copies. Nothing here knows a format: XXH3 and zstd are functions of other libraries, whose
   addresses the caller hands in (brand/native/borrowed.py).

   Only the stable ABI of Python 3.11 is used, so one build serves all later versions. */

#include "arrays.h"

/* Objects of pieces */

typedef PyObject *(*Make)(const char *, Py_ssize_t);

static PyObject *text_of(const char *bytes, Py_ssize_t size) { return PyUnicode_DecodeUTF8(bytes, size, NULL); }

static PyObject *objects(PyObject *const *args, Py_ssize_t given, Make make) {
    Pieces pieces;
    if (!has_arguments(given, 3) || !take_pieces(args[0], PyBUF_SIMPLE, args[1], args[2], &pieces))
        return NULL;
    PyObject *list = PyList_New(pieces.count);
    for (Py_ssize_t i = 0; list && i < pieces.count; i++) {
        fetch_ahead(&pieces, i);
        PyObject *made = make(piece(&pieces, i), pieces.sizes.items[i]);
        if (!made || PyList_SetItem(list, i, made) < 0)
            Py_CLEAR(list);
    }
    release_pieces(&pieces);
    return list;
}

static PyObject *core_pieces(PyObject *self, PyObject *const *args, Py_ssize_t given) {
    return objects(args, given, PyBytes_FromStringAndSize);
}

static PyObject *core_texts(PyObject *self, PyObject *const *args, Py_ssize_t given) {
    return objects(args, given, text_of);
}

/* Order between accesses to shared memory */

/* x86-64 keeps loads in order, and stores; arm64 keeps neither without this. */
static PyObject *core_fence(PyObject *self, PyObject *const *args, Py_ssize_t given) {
    if (!has_arguments(given, 0))
        return NULL;
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    return Py_NewRef(Py_None);
}

/* Checksums */

static PyObject *core_digests(PyObject *self, PyObject *const *args, Py_ssize_t given) {
    Pieces pieces;
    Py_buffer out;
    PyObject *done = NULL;
    if (!has_arguments(given, 5))
        return NULL;
    Digest digest = lent_digest(args[0]);
    if (!digest || !take_pieces(args[1], PyBUF_SIMPLE, args[2], args[3], &pieces))
        return NULL;
    if (PyObject_GetBuffer(args[4], &out, PyBUF_WRITABLE) == 0) {
        if (out.len == pieces.count * (Py_ssize_t)sizeof(uint64_t)) {
            Py_BEGIN_ALLOW_THREADS
            for (Py_ssize_t i = 0; i < pieces.count; i++) {
                fetch_ahead(&pieces, i);
                ((uint64_t *)out.buf)[i] = digest(piece(&pieces, i), (size_t)pieces.sizes.items[i]);
            }
            Py_END_ALLOW_THREADS
            done = Py_NewRef(Py_None);
        } else
            PyErr_SetString(PyExc_ValueError, "an array has another length than the others");
        PyBuffer_Release(&out);
    }
    release_pieces(&pieces);
    return done;
}

/* zstd frames */

typedef struct {
    void *(*create_context)(void);
    size_t (*free_context)(void *);
    void *(*create_dictionary)(const void *, size_t);
    size_t (*free_dictionary)(void *);
    size_t (*unpack)(void *, void *, size_t, const void *, size_t, const void *);
    unsigned (*is_error)(size_t);
    size_t (*frame_size)(const void *, size_t);
    unsigned long long (*content_size)(const void *, size_t);
} Zstd;

typedef struct {
    Zstd zstd;
    void *context, *dictionary;
} Unpacker;

static const char UNPACKER[] = "brand.native.unpacker";

static void free_unpacker(PyObject *capsule) {
    Unpacker *unpacker = PyCapsule_GetPointer(capsule, UNPACKER);
    if (!unpacker)
        return;
    unpacker->zstd.free_context(unpacker->context);
    unpacker->zstd.free_dictionary(unpacker->dictionary);
    PyMem_Free(unpacker);
}

static PyObject *core_unpacker(PyObject *self, PyObject *const *args, Py_ssize_t given) {
    Py_buffer dictionary;
    void *functions[sizeof(Zstd) / sizeof(void *)];
    const Py_ssize_t wanted = sizeof functions / sizeof *functions;
    if (!has_arguments(given, 2) || !has_arguments(PyTuple_Size(args[0]), wanted))
        return NULL;
    for (Py_ssize_t i = 0; i < wanted; i++) {
        functions[i] = PyLong_AsVoidPtr(PyTuple_GetItem(args[0], i));
        if (!functions[i]) {
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_ValueError, "no function was lent");
            return NULL;
        }
    }
    if (PyObject_GetBuffer(args[1], &dictionary, PyBUF_SIMPLE) < 0)
        return NULL;
    Unpacker *unpacker = PyMem_Malloc(sizeof *unpacker);
    PyObject *capsule = NULL;
    if (unpacker) {
        memcpy(&unpacker->zstd, functions, sizeof functions);
        unpacker->context = unpacker->zstd.create_context();
        unpacker->dictionary = unpacker->zstd.create_dictionary(dictionary.buf, (size_t)dictionary.len);
        if (unpacker->context && unpacker->dictionary)
            capsule = PyCapsule_New(unpacker, UNPACKER, free_unpacker);
        if (!capsule) { /* both frees take NULL */
            unpacker->zstd.free_context(unpacker->context);
            unpacker->zstd.free_dictionary(unpacker->dictionary);
            PyMem_Free(unpacker);
        }
    }
    PyBuffer_Release(&dictionary);
    return capsule || PyErr_Occurred() ? capsule : PyErr_NoMemory();
}

static PyObject *core_unpack(PyObject *self, PyObject *const *args, Py_ssize_t given) {
    Pieces frames;
    Numbers raw_sizes;
    Py_buffer out;
    PyObject *done = NULL;
    if (!has_arguments(given, 6))
        return NULL;
    const Unpacker *unpacker = PyCapsule_GetPointer(args[0], UNPACKER);
    if (!unpacker || !take_pieces(args[1], PyBUF_SIMPLE, args[2], args[3], &frames))
        return NULL;
    if (take_numbers(args[4], frames.count, &raw_sizes)) {
        if (PyObject_GetBuffer(args[5], &out, PyBUF_WRITABLE) == 0) {
            if (fill(&raw_sizes, out.len, out.len)) {
                const Zstd *zstd = &unpacker->zstd;
                Py_ssize_t right = 0;
                char *to = out.buf;
                Py_BEGIN_ALLOW_THREADS
                for (; right < frames.count; right++) {
                    fetch_ahead(&frames, right);
                    const char *from = piece(&frames, right);
                    size_t size = (size_t)frames.sizes.items[right], raw_size = (size_t)raw_sizes.items[right];
                    /* Nothing follows the frame, and it states its content; an error is none of these sizes. */
                    if (zstd->frame_size(from, size) != size || zstd->content_size(from, size) != raw_size)
                        break;
                    size_t made = zstd->unpack(unpacker->context, to, raw_size, from, size, unpacker->dictionary);
                    if (zstd->is_error(made) || made != raw_size)
                        break;
                    to += raw_size;
                }
                Py_END_ALLOW_THREADS
                if (right == frames.count)
                    done = Py_NewRef(Py_None);
                else
                    PyErr_SetString(PyExc_ValueError, "not a zstd frame of this data set, of this size");
            } else
                PyErr_SetString(PyExc_ValueError, "the records do not fill the memory");
            PyBuffer_Release(&out);
        }
        PyBuffer_Release(&raw_sizes.view);
    }
    release_pieces(&frames);
    return done;
}

#define METHOD(name) {#name, (PyCFunction)(void (*)(void))core_##name, METH_FASTCALL, NULL}

static PyMethodDef methods[] = {
    METHOD(pieces),  METHOD(texts),       METHOD(digests),  METHOD(gather),
    METHOD(scatter), METHOD(copy_mapped), METHOD(unpacker), METHOD(unpack),
    METHOD(sort),    METHOD(read_cached), METHOD(fence),    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_core", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__core(void) {
    return PyModuleDef_Init(&module);
}
