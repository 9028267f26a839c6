/* The loops over samples that numpy cannot do in one call: brand.native says which, and what does without them.

   Every function takes many samples at once, checks every bound before it touches memory, and releases the
   interpreter's lock while it copies. Nothing here knows a format: XXH3 and zstd are functions of other libraries, whose
   addresses the caller hands in (brand/native/borrowed.py).

   Only the stable ABI of Python 3.11 is used, so one build serves all later versions. */

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#define _GNU_SOURCE
#include <Python.h>
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/uio.h>

enum { MOST_PIECES = 1024 };    /* IOV_MAX of Linux */
enum { AHEAD = 8, LINES = 8 };  /* how many pieces, and cache lines of each, are fetched ahead of their copy */

/* Arrays of the caller */

typedef struct {
    Py_buffer view;
    const int64_t *items;
    Py_ssize_t count;
} Numbers;

/* Contiguous 8-byte integers; `count` >= 0: so many of them. */
static int take_numbers(PyObject *array, Py_ssize_t count, Numbers *numbers) {
    if (PyObject_GetBuffer(array, &numbers->view, PyBUF_SIMPLE) < 0)
        return 0;
    numbers->items = numbers->view.buf;
    numbers->count = numbers->view.len / (Py_ssize_t)sizeof(int64_t);
    if (numbers->view.len % (Py_ssize_t)sizeof(int64_t) || (count >= 0 && numbers->count != count)) {
        PyBuffer_Release(&numbers->view);
        PyErr_SetString(PyExc_ValueError, "an array has another length than the others");
        return 0;
    }
    return 1;
}

typedef struct {
    Py_buffer memory;
    Numbers starts, sizes;
    Py_ssize_t count;
} Pieces;

static void release_pieces(Pieces *pieces) {
    PyBuffer_Release(&pieces->memory);
    PyBuffer_Release(&pieces->starts.view);
    PyBuffer_Release(&pieces->sizes.view);
}

static int outside(int64_t start, int64_t size, Py_ssize_t end) {
    return start < 0 || size < 0 || start > end || size > end - start;
}

/* Whether pieces of these sizes, each of `most` bytes at the most, fill `room` bytes. */
static int fill(const Numbers *sizes, int64_t most, int64_t room) {
    for (Py_ssize_t i = 0; i < sizes->count && room >= 0; i++)
        room = outside(0, sizes->items[i], most) ? -1 : room - sizes->items[i];
    return room == 0;
}

/* `sizes[i]` bytes from `starts[i]` on, all of them inside of `memory`. */
static int take_pieces(PyObject *memory, int flags, PyObject *starts, PyObject *sizes, Pieces *pieces) {
    if (PyObject_GetBuffer(memory, &pieces->memory, flags) < 0)
        return 0;
    if (!take_numbers(starts, -1, &pieces->starts)) {
        PyBuffer_Release(&pieces->memory);
        return 0;
    }
    pieces->count = pieces->starts.count;
    if (!take_numbers(sizes, pieces->count, &pieces->sizes)) {
        PyBuffer_Release(&pieces->memory);
        PyBuffer_Release(&pieces->starts.view);
        return 0;
    }
    for (Py_ssize_t i = 0; i < pieces->count; i++)
        if (outside(pieces->starts.items[i], pieces->sizes.items[i], pieces->memory.len)) {
            release_pieces(pieces);
            PyErr_SetString(PyExc_ValueError, "a piece lies outside of its memory");
            return 0;
        }
    return 1;
}

static const char *piece(const Pieces *pieces, Py_ssize_t i) {
    return (const char *)pieces->memory.buf + pieces->starts.items[i];
}

/* Pieces lie at random places: ask for the next ones before they are needed. */
static void fetch_ahead(const Pieces *pieces, Py_ssize_t i) {
    if (i + AHEAD >= pieces->count)
        return;
    const char *next = piece(pieces, i + AHEAD);
    int64_t size = pieces->sizes.items[i + AHEAD];
    for (int line = 0; line < LINES && 64 * line < size; line++)
        __builtin_prefetch(next + 64 * line);
}

static int has_arguments(Py_ssize_t given, Py_ssize_t wanted) {
    if (given == wanted)
        return 1;
    PyErr_Format(PyExc_TypeError, "%zd arguments are due, %zd were given", wanted, given);
    return 0;
}

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

/* Checksums */

typedef uint64_t (*Digest)(const void *, size_t);

static PyObject *core_are_right(PyObject *self, PyObject *const *args, Py_ssize_t given) {
    Pieces pieces;
    Numbers checksums;
    Py_buffer out;
    PyObject *done = NULL;
    if (!has_arguments(given, 6))
        return NULL;
    Digest digest = (Digest)PyLong_AsVoidPtr(args[0]);
    if (!digest) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "no function was lent");
        return NULL;
    }
    if (!take_pieces(args[1], PyBUF_SIMPLE, args[2], args[3], &pieces))
        return NULL;
    if (take_numbers(args[4], pieces.count, &checksums)) {
        if (PyObject_GetBuffer(args[5], &out, PyBUF_WRITABLE) == 0) {
            if (out.len == pieces.count) {
                Py_BEGIN_ALLOW_THREADS
                for (Py_ssize_t i = 0; i < pieces.count; i++) {
                    fetch_ahead(&pieces, i);
                    uint64_t found = digest(piece(&pieces, i), (size_t)pieces.sizes.items[i]);
                    ((char *)out.buf)[i] = found == (uint64_t)checksums.items[i];
                }
                Py_END_ALLOW_THREADS
                done = Py_NewRef(Py_None);
            } else
                PyErr_SetString(PyExc_ValueError, "an array has another length than the others");
            PyBuffer_Release(&out);
        }
        PyBuffer_Release(&checksums.view);
    }
    release_pieces(&pieces);
    return done;
}

/* Copies */

static PyObject *core_gather(PyObject *self, PyObject *const *args, Py_ssize_t given) {
    Pieces pieces;
    Py_buffer out;
    PyObject *done = NULL;
    if (!has_arguments(given, 4) || !take_pieces(args[0], PyBUF_SIMPLE, args[1], args[2], &pieces))
        return NULL;
    if (PyObject_GetBuffer(args[3], &out, PyBUF_WRITABLE) == 0) {
        if (fill(&pieces.sizes, out.len, out.len)) {
            char *to = out.buf;
            Py_BEGIN_ALLOW_THREADS
            for (Py_ssize_t i = 0; i < pieces.count; i++) {
                fetch_ahead(&pieces, i);
                memcpy(to, piece(&pieces, i), (size_t)pieces.sizes.items[i]);
                to += pieces.sizes.items[i];
            }
            Py_END_ALLOW_THREADS
            done = Py_NewRef(Py_None);
        } else
            PyErr_SetString(PyExc_ValueError, "the pieces do not fill the memory");
        PyBuffer_Release(&out);
    }
    release_pieces(&pieces);
    return done;
}

/* Copies out of mapped files. The kernel copies, so that a page that is missing is an error of a call, not a signal. */

/* Copy `count` pieces to `to`, side by side, through the file `landing`. Returns 0 where the kernel refuses. */
static int copy_through(int landing, const char *landed, const struct iovec *vector, int count, int64_t size, char *to) {
    ssize_t brought;
    do
        brought = pwritev(landing, vector, count, 0);
    while (brought < 0 && errno == EINTR);
    if (brought != size)
        return 0;
    memcpy(to, landed, (size_t)size);
    return 1;
}

static PyObject *core_copy_mapped(PyObject *self, PyObject *const *args, Py_ssize_t given) {
    Numbers addresses, sizes;
    Py_buffer landed, out;
    PyObject *done = NULL;
    if (!has_arguments(given, 5))
        return NULL;
    long landing = PyLong_AsLong(args[0]);
    if (landing == -1 && PyErr_Occurred())
        return NULL;
    if (PyObject_GetBuffer(args[1], &landed, PyBUF_SIMPLE) < 0)
        return NULL;
    if (take_numbers(args[2], -1, &addresses)) {
        if (take_numbers(args[3], addresses.count, &sizes)) {
            if (PyObject_GetBuffer(args[4], &out, PyBUF_WRITABLE) == 0) {
                if (fill(&sizes, landed.len, out.len)) {
                    struct iovec vector[MOST_PIECES];
                    int64_t size = 0;
                    int count = 0, right = 1;
                    char *to = out.buf;
                    Py_BEGIN_ALLOW_THREADS
                    for (Py_ssize_t i = 0; right && i < sizes.count; i++) {
                        if (count == MOST_PIECES || size + sizes.items[i] > landed.len) {
                            right = copy_through((int)landing, landed.buf, vector, count, size, to);
                            to += size;
                            size = count = 0;
                        }
                        vector[count].iov_base = (void *)(uintptr_t)addresses.items[i];
                        vector[count++].iov_len = (size_t)sizes.items[i];
                        size += sizes.items[i];
                    }
                    if (right && count)
                        right = copy_through((int)landing, landed.buf, vector, count, size, to);
                    Py_END_ALLOW_THREADS
                    done = PyBool_FromLong(right);
                } else
                    PyErr_SetString(PyExc_ValueError, "the pieces do not fill the memory, or one is too large");
                PyBuffer_Release(&out);
            }
            PyBuffer_Release(&sizes.view);
        }
        PyBuffer_Release(&addresses.view);
    }
    PyBuffer_Release(&landed);
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
    METHOD(pieces),      METHOD(texts),    METHOD(are_right), METHOD(gather),
    METHOD(copy_mapped), METHOD(unpacker), METHOD(unpack),    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_core", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__core(void) {
    return PyModuleDef_Init(&module);
}
