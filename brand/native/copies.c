/* Copies of many pieces: together, apart, and out of mapped files. */

#include "arrays.h"
#include <errno.h>
#include <sys/uio.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

enum { MOST_PIECES = 1024 }; /* IOV_MAX of Linux */
enum { LARGE = 4096 };       /* bytes of a piece that is copied past the caches */

/* Copy a piece. What a large one overwrites need not be read first, and the caches keep what they have. */
static void copy(char *to, const char *from, size_t size) {
#ifdef __SSE2__
    if (size >= LARGE) {
        size_t done = -(uintptr_t)to & 15;
        memcpy(to, from, done);
        for (; done + 64 <= size; done += 64)
            for (int part = 0; part < 64; part += 16) {
                __m128i some = _mm_loadu_si128((const __m128i *)(from + done + part));
                _mm_stream_si128((__m128i *)(to + done + part), some);
            }
        _mm_sfence();
        to += done;
        from += done;
        size -= done;
    }
#endif
    memcpy(to, from, size);
}

PyObject *core_gather(PyObject *self, PyObject *const *args, Py_ssize_t given) {
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
                copy(to, piece(&pieces, i), (size_t)pieces.sizes.items[i]);
                to += pieces.sizes.items[i];
            }
            /* The memory may be shared, and its owner may write to it: what the caller reads next, to find out whether
               the pieces have changed, must not be loaded before them. */
            __atomic_thread_fence(__ATOMIC_ACQUIRE);
            Py_END_ALLOW_THREADS
            done = Py_NewRef(Py_None);
        } else
            PyErr_SetString(PyExc_ValueError, "the pieces do not fill the memory");
        PyBuffer_Release(&out);
    }
    release_pieces(&pieces);
    return done;
}

/* A piece of memory at an address, in the layout of readv(2). The caller vouches for the addresses. */
typedef struct {
    uint64_t base, length;
} Place;

PyObject *core_scatter(PyObject *self, PyObject *const *args, Py_ssize_t given) {
    Py_buffer source, vector;
    PyObject *done = NULL;
    if (!has_arguments(given, 3))
        return NULL;
    Py_ssize_t at = PyLong_AsSsize_t(args[2]);
    if ((at == -1 && PyErr_Occurred()) || PyObject_GetBuffer(args[0], &source, PyBUF_SIMPLE) < 0)
        return NULL;
    if (PyObject_GetBuffer(args[1], &vector, PyBUF_WRITABLE) == 0) {
        const Py_ssize_t count = vector.len / (Py_ssize_t)sizeof(Place);
        Place *places = vector.buf;
        size_t left = (size_t)source.len, room = 0;
        for (Py_ssize_t i = at; at >= 0 && i < count && room < left; i++)
            room += places[i].length < left - room ? places[i].length : left - room;
        if (at >= 0 && at <= count && room == left) {
            const char *from = source.buf;
            Py_BEGIN_ALLOW_THREADS
            while (left) {
                Place *place = &places[at];
                size_t size = place->length < left ? place->length : left;
                copy((char *)(uintptr_t)place->base, from, size);
                from += size;
                left -= size;
                place->base += size;
                place->length -= size;
                at += !place->length;
            }
            Py_END_ALLOW_THREADS
            done = PyLong_FromSsize_t(at);
        } else
            PyErr_SetString(PyExc_ValueError, "the pieces do not take all of the memory");
        PyBuffer_Release(&vector);
    }
    PyBuffer_Release(&source);
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

PyObject *core_copy_mapped(PyObject *self, PyObject *const *args, Py_ssize_t given) {
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
