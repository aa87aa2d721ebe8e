/* The few functions of zstd.c that the drain calls.
 *
 * zstd.c is Zstandard's own code (see zstd.LICENSE); this header is callsight's. */
#ifndef CALLSIGHT_ZSTD_H
#define CALLSIGHT_ZSTD_H

#include <stddef.h>

typedef struct ZSTD_CCtx_s ZSTD_CCtx;

ZSTD_CCtx *ZSTD_createCCtx(void);
size_t ZSTD_freeCCtx(ZSTD_CCtx *context);
size_t ZSTD_compressBound(size_t raw_bytes);
/* Parameters of ZSTD_CCtx_setParameter, by their numbers in Zstandard's own header. */
#define ZSTD_C_COMPRESSION_LEVEL 100
#define ZSTD_C_CHECKSUM_FLAG 201

size_t ZSTD_CCtx_setParameter(ZSTD_CCtx *context, int parameter, int value);
size_t ZSTD_compress2(ZSTD_CCtx *context, void *out, size_t out_bytes, const void *raw,
                      size_t raw_bytes);
unsigned ZSTD_isError(size_t result);
const char *ZSTD_getErrorName(size_t result);
const char *ZSTD_versionString(void);

#endif
