/* Samples out of the page cache: a system call and a checksum for each, without the interpreter's lock between them. */

#include "arrays.h"

#include <sys/uio.h>

#ifndef RWF_NOWAIT
#define RWF_NOWAIT 8
#endif

/* Read `size` bytes of a file, if the page cache has all of them. */
static int is_there(int64_t file, int64_t offset, void *to, int64_t size) {
    struct iovec place = {to, (size_t)size};
    return preadv2((int)file, &place, 1, (off_t)offset, RWF_NOWAIT) == (ssize_t)size;
}

PyObject *core_read_cached(PyObject *self, PyObject *const *args, Py_ssize_t given) {
    Pieces pieces;
    Numbers files, offsets;
    Py_buffer made, there;
    PyObject *done = NULL;
    if (!has_arguments(given, 9))
        return NULL;
    Digest digest = lent_digest(args[0]);
    Py_ssize_t late = PyLong_AsSsize_t(args[6]);
    if (!digest || (late == -1 && PyErr_Occurred()))
        return NULL;
    if (!take_pieces(args[3], PyBUF_WRITABLE, args[4], args[5], &pieces))
        return NULL;
    if (take_numbers(args[1], pieces.count, &files)) {
        if (take_numbers(args[2], pieces.count, &offsets)) {
            if (PyObject_GetBuffer(args[7], &made, PyBUF_WRITABLE) == 0) {
                if (PyObject_GetBuffer(args[8], &there, PyBUF_WRITABLE) == 0) {
                    if (made.len == pieces.count * (Py_ssize_t)sizeof(uint64_t) && there.len == pieces.count) {
                        Py_BEGIN_ALLOW_THREADS
                        for (Py_ssize_t i = 0; late >= 0 && i < pieces.count; i++) {
                            char *to = (char *)pieces.memory.buf + pieces.starts.items[i];
                            int64_t size = pieces.sizes.items[i];
                            int found = is_there(files.items[i], offsets.items[i], to, size);
                            ((char *)there.buf)[i] = (char)found;
                            if (found) /* while the bytes are in the processor's cache */
                                ((uint64_t *)made.buf)[i] = digest(to, (size_t)size);
                            else
                                late--;
                        }
                        Py_END_ALLOW_THREADS
                        done = PyBool_FromLong(late >= 0);
                    } else
                        PyErr_SetString(PyExc_ValueError, "an array has another length than the others");
                    PyBuffer_Release(&there);
                }
                PyBuffer_Release(&made);
            }
            PyBuffer_Release(&offsets.view);
        }
        PyBuffer_Release(&files.view);
    }
    release_pieces(&pieces);
    return done;
}
