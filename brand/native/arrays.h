/* The arrays that callers hand in: numbers, and pieces of a memory. Every bound is checked here. */

#ifndef BRAND_ARRAYS_H
#define BRAND_ARRAYS_H

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#define _GNU_SOURCE
#include <Python.h>
#include <stdint.h>
#include <string.h>

enum { AHEAD = 8, LINES = 8 }; /* how many pieces, and cache lines of each, are fetched ahead of their copy */

typedef struct {
    Py_buffer view;
    const int64_t *items;
    Py_ssize_t count;
} Numbers;

/* Contiguous 8-byte integers; `count` >= 0: so many of them. */
static inline int take_numbers(PyObject *array, Py_ssize_t count, Numbers *numbers) {
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

static inline void release_pieces(Pieces *pieces) {
    PyBuffer_Release(&pieces->memory);
    PyBuffer_Release(&pieces->starts.view);
    PyBuffer_Release(&pieces->sizes.view);
}

static inline int outside(int64_t start, int64_t size, Py_ssize_t end) {
    return start < 0 || size < 0 || start > end || size > end - start;
}

/* Whether pieces of these sizes, each of `most` bytes at the most, fill `room` bytes. */
static inline int fill(const Numbers *sizes, int64_t most, int64_t room) {
    for (Py_ssize_t i = 0; i < sizes->count && room >= 0; i++)
        room = outside(0, sizes->items[i], most) ? -1 : room - sizes->items[i];
    return room == 0;
}

/* `sizes[i]` bytes from `starts[i]` on, all of them inside of `memory`. */
static inline int take_pieces(PyObject *memory, int flags, PyObject *starts, PyObject *sizes, Pieces *pieces) {
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

static inline const char *piece(const Pieces *pieces, Py_ssize_t i) {
    return (const char *)pieces->memory.buf + pieces->starts.items[i];
}

/* Pieces lie at random places: ask for the next ones before they are needed. */
static inline void fetch_ahead(const Pieces *pieces, Py_ssize_t i) {
    if (i + AHEAD >= pieces->count)
        return;
    const char *next = piece(pieces, i + AHEAD);
    int64_t size = pieces->sizes.items[i + AHEAD];
    for (int line = 0; line < LINES && 64 * line < size; line++)
        __builtin_prefetch(next + 64 * line);
}

/* XXH3 of the package xxhash. */
typedef uint64_t (*Digest)(const void *, size_t);

static inline Digest lent_digest(PyObject *address) {
    Digest digest = (Digest)PyLong_AsVoidPtr(address);
    if (!digest && !PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "no function was lent");
    return digest;
}

static inline int has_arguments(Py_ssize_t given, Py_ssize_t wanted) {
    if (given == wanted)
        return 1;
    PyErr_Format(PyExc_TypeError, "%zd arguments are due, %zd were given", wanted, given);
    return 0;
}

/* copies.c */
PyObject *core_gather(PyObject *self, PyObject *const *args, Py_ssize_t given);
PyObject *core_scatter(PyObject *self, PyObject *const *args, Py_ssize_t given);
PyObject *core_copy_mapped(PyObject *self, PyObject *const *args, Py_ssize_t given);

/* reading.c */
PyObject *core_read_cached(PyObject *self, PyObject *const *args, Py_ssize_t given);

/* sorting.c */
PyObject *core_sort(PyObject *self, PyObject *const *args, Py_ssize_t given);

#endif
