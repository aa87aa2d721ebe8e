/* The bytes of callsight: event, file, ring and wire. Generated from runtime/format; do not edit:
 * change the Rust types and run `UPDATE=1 cargo test -p callsight-format`. */

#pragma once

#include <stdint.h>
#include <stddef.h>

/*
 Bytes of [`BlockHeader`].
 */
#define CALLSIGHT_BLOCK_HEADER_BYTES 112

/*
 Most records of a block.
 */
#define CALLSIGHT_BLOCK_MAX_RECORDS (16 << 10)

/*
 Pairs of function and call site that are known at a time.
 */
#define CALLSIGHT_PACK_PAIRS 1024

/*
 Functions that are known at a time.
 */
#define CALLSIGHT_PACK_FUNCTIONS 1024

/*
 Open calls that are known; deeper ones take the place of the outermost.
 */
#define CALLSIGHT_PACK_STACK 256

/*
 How far below the top of the stack the call of an exit is looked for.
 */
#define CALLSIGHT_PACK_BELOW 32

/*
 Op: an exit of the call on top of the stack.
 */
#define CALLSIGHT_OP_EXIT 0

/*
 Op: an enter of what was called here the last time.
 */
#define CALLSIGHT_OP_ENTER 1

/*
 Op: an enter of a known pair, whose number is in `ids`.
 */
#define CALLSIGHT_OP_ENTER_PAIR 2

/*
 Op: an enter of a new pair: the function's number plus one in `ids`, 0 for a new function,
 whose distance from the last new one is in `names`; then the distance of the call site from
 the caller's function in `names`.
 */
#define CALLSIGHT_OP_ENTER_NEW 3

/*
 Op: an exit of the call that is as far below the top of the stack as the byte in `ids` says;
 those above it are gone.
 */
#define CALLSIGHT_OP_EXIT_BELOW 4

/*
 Op: an exit of a known pair that is not on the stack; its frame is in `frames`.
 */
#define CALLSIGHT_OP_EXIT_PAIR 5

/*
 Op: the same of a new pair.
 */
#define CALLSIGHT_OP_EXIT_NEW 6

/*
 Op: no call; the record is in `literals`.
 */
#define CALLSIGHT_OP_RECORD 7

/*
 Bit of an op that is an enter: the step of the frame is in `frames`.
 */
#define CALLSIGHT_OP_FRAME 8

/*
 Op: a note that the drain made about the writer, in `literals`; it has no number.
 */
#define CALLSIGHT_OP_NOTE 15

/*
 Time byte: below this, the time itself; from here on, one more byte, and what is above it.
 */
#define CALLSIGHT_TIME_LONGER 240

/*
 Time byte: the time less [`TIME_LONGER`] in four more bytes.
 */
#define CALLSIGHT_TIME_4_BYTES 254

/*
 Time byte: the time less [`TIME_LONGER`] in eight more bytes, also one that runs backwards.
 */
#define CALLSIGHT_TIME_8_BYTES 255

/*
 Bytes of one [`Event`].
 */
#define CALLSIGHT_EVENT_BYTES 32

/*
 [`Event::kind`]: a function was entered.
 */
#define CALLSIGHT_KIND_ENTER 0

/*
 [`Event::kind`]: a function is about to return.
 */
#define CALLSIGHT_KIND_EXIT 1

/*
 [`Event::kind`]: not a call; `func` holds a marker code (`MARK_*`), `call_site` its payload.
 */
#define CALLSIGHT_KIND_MARKER 2

/*
 [`Event::kind`]: hardware counter deltas of the exit right before it.
 */
#define CALLSIGHT_KIND_COUNTERS 3

/*
 Marker (2): the capture reached its budget. Payload: the budget in bytes.
 */
#define CALLSIGHT_MARK_BUDGET 1

/*
 Marker (2): free space fell below the floor. Payload: the floor in bytes.
 */
#define CALLSIGHT_MARK_NO_SPACE 2

/*
 Marker (2): writing failed. Payload: errno.
 */
#define CALLSIGHT_MARK_WRITE_ERROR 3

/*
 Marker (2): the event limit was reached. Payload: the limit in events.
 */
#define CALLSIGHT_MARK_MAX_EVENTS 4

/*
 Marker (2): a segment was rotated away. Payload: events lost with it, and with those before it that its
 own markers tell. `frame` is [`wrap_frame`] of its number, 0 where that is not told. The marker stands
 before the file is removed: where the file of that number is there, nothing of it was lost.
 */
#define CALLSIGHT_MARK_WRAP 5

/*
 Marker (2): a clock anchor. `ts` is in ticks, the payload is `CLOCK_MONOTONIC` in ns at that
 instant. The closing one is the last record of a file; any number may stand before it.
 */
#define CALLSIGHT_MARK_CLOCK 6

/*
 Markers (2) 7 to 11: set-up of hardware counters. A reader without counters skips them.
 */
#define CALLSIGHT_MARK_COUNTER_FIRST 7

/*
 See [`MARK_COUNTER_FIRST`].
 */
#define CALLSIGHT_MARK_COUNTER_LAST 11

/*
 Version of the event file that we write; 1 is read as well.
 */
#define CALLSIGHT_FILE_VERSION 2

/*
 Version of an event file that holds chunks as they came over the wire, from a sender that
 packs: behind the header [`CHUNK_HELLO`](crate::CHUNK_HELLO), then any of the others,
 [`CHUNK_SINK`](crate::CHUNK_SINK) last. Each segment begins with the first two again.
 */
#define CALLSIGHT_FILE_VERSION_CHUNKS 3

/*
 Bytes of [`FileHeader`]. A file may state a larger `header_size`: readers skip that many.
 */
#define CALLSIGHT_FILE_HEADER_BYTES 80

/*
 Header bytes of a version 1 file: magic, version, event size. Times are in ns, no load bias.
 */
#define CALLSIGHT_FILE_HEADER_V1_BYTES 16

/*
 The `header_size` of files that the runtime maps: a multiple of an event, so that no event
 crosses the end of a window.
 */
#define CALLSIGHT_FILE_HEADER_MAPPED_BYTES 96

/*
 Bytes of a window in a file that the runtime maps: a thread's own stretch, at a multiple of
 this offset. 512 events, which a thread in a tight loop fills in 12 µs; larger ones gain
 nothing measurable and waste more in programs of many short threads.
 */
#define CALLSIGHT_FILE_WINDOW_BYTES (16 << 10)

/*
 Longest absolute path of the folder that a traced program makes its files in.
 */
#define CALLSIGHT_FILE_FOLDER_MAX_BYTES 511

/*
 Longest list of the names of threads that a traced program selects.
 */
#define CALLSIGHT_THREAD_NAMES_MAX_BYTES 4095

/*
 Flag: `ts` is in clock ticks; without it in nanoseconds.
 */
#define CALLSIGHT_FLAG_TICKS 1

/*
 Flag: earlier segments were rotated away.
 */
#define CALLSIGHT_FLAG_WRAPPED 2

/*
 Flag: the producer is big-endian.
 */
#define CALLSIGHT_FLAG_BIG_ENDIAN 4

/*
 Version of the summary file that we write; 1 is read as well.
 */
#define CALLSIGHT_SUMMARY_VERSION 2

/*
 Bytes of [`SummaryHeader`]; 96 in version 1.
 */
#define CALLSIGHT_SUMMARY_HEADER_BYTES 192

/*
 Header bytes of a version 1 summary file: it ends before the counters.
 */
#define CALLSIGHT_SUMMARY_HEADER_V1_BYTES 96

/*
 Bytes of [`SummaryRecord`]; 688 in version 1.
 */
#define CALLSIGHT_SUMMARY_RECORD_BYTES 744

/*
 Record bytes of a version 1 summary file: it ends before the counters.
 */
#define CALLSIGHT_SUMMARY_RECORD_V1_BYTES 688

/*
 Buckets of the histogram: durations 0 to 7 have one each, then four an octave.
 */
#define CALLSIGHT_SUMMARY_BUCKETS 160

/*
 Payload bytes of one note record.
 */
#define CALLSIGHT_NOTE_PIECE_BYTES 12

/*
 The longest note, its two length bytes not counted.
 */
#define CALLSIGHT_NOTE_MAX_BYTES 4608

/*
 Note: which process this thread belongs to. Fields: [`ProcessNote`].
 */
#define CALLSIGHT_NOTE_PROCESS 256

/*
 Note: name of the thread, at most 15 bytes, no terminator.
 */
#define CALLSIGHT_NOTE_THREAD_NAME 257

/*
 Note: a module is mapped. Fields: [`ModuleNote`]. It holds from the moment the same addresses
 were last given up (or from the start), because a load is noticed only afterwards.
 */
#define CALLSIGHT_NOTE_MODULE 258

/*
 Note: a module was unmapped: base u64, size u64.
 */
#define CALLSIGHT_NOTE_MODULE_GONE 259

/*
 Note: this writer lost events here. Fields: [`LossNote`].
 */
#define CALLSIGHT_NOTE_LOSS 260

/*
 Note: recording ended or could not be done as asked: reason u32 ([`StopReason`]), then UTF-8.
 */
#define CALLSIGHT_NOTE_STOP 261

/*
 Note without meaning: fills slots of a window that will not be used. One record, no length.
 */
#define CALLSIGHT_NOTE_PADDING 262

/*
 Note: at the head of a segment, what the one before it was in the end. Bytes: its size in bytes
 u64. The first segment of a stream has it too, with size 0: from a server that says
 [`StopReason::Closed`] or [`StopReason::Cut`] when it is done with a stream.
 */
#define CALLSIGHT_NOTE_SEGMENT 263

/*
 Bytes of a [`NOTE_SEGMENT`].
 */
#define CALLSIGHT_SEGMENT_NOTE_BYTES 8

/*
 Note: recording is paused here, or was before this place: calls that the writer made then are not in
 the data, which is no loss. May come twice for one pause. No bytes.
 */
#define CALLSIGHT_NOTE_PAUSE 264

/*
 How many values [`Cause`] has.
 */
#define CALLSIGHT_CAUSES 12

/*
 How many of them a ring counts, the first ones.
 */
#define CALLSIGHT_RING_CAUSES 8

/*
 [`ProcessNote::flags`]: the process came from a fork of a traced process and may leave
 functions it never entered.
 */
#define CALLSIGHT_PROCESS_FORKED 1

/*
 [`ProcessNote::flags`]: said again so that a segment file can be read alone. Without it the
 note is the first record of a thread's life, and ends what went before under the same tid.
 */
#define CALLSIGHT_PROCESS_AGAIN 2

/*
 Bytes of a [`ProcessNote`] before its path.
 */
#define CALLSIGHT_PROCESS_NOTE_BYTES 20

/*
 Bytes of a [`ModuleNote`] before its build-id.
 */
#define CALLSIGHT_MODULE_NOTE_BYTES 25

/*
 Bytes of a [`LossNote`].
 */
#define CALLSIGHT_LOSS_NOTE_BYTES 28

/*
 Bytes before each payload: kind u32, payload bytes u32.
 */
#define CALLSIGHT_REPLY_HEADER_BYTES 8

/*
 Most bytes of a payload; a sender closes a connection that announces more.
 */
#define CALLSIGHT_REPLY_MAX_BYTES 4096

/*
 Reply: who this is, before any other. [`GREETING_MAGIC`], then [`GREETING_VERSION`]
 u32, then flags u32 (0).
 */
#define CALLSIGHT_REPLY_GREETING 1

/*
 Reply: every block of this stream up to this number (u64) is stored, or dropped and counted.
 Comes once behind the sender's [`HELLO_STREAM`](crate::HELLO_STREAM), 0 for a stream that is
 new, and again when the number has grown.
 */
#define CALLSIGHT_REPLY_ACKNOWLEDGE 2

/*
 Reply: asks for a pong. Sequence number u64, the server's clock in ns u64.
 */
#define CALLSIGHT_REPLY_PING 3

/*
 Reply: what the traced processes should do from now on: u32, one of `COMMAND_*`.
 */
#define CALLSIGHT_REPLY_COMMAND 4

/*
 Version of the greeting.
 */
#define CALLSIGHT_GREETING_VERSION 1

/*
 Bytes of a greeting's payload.
 */
#define CALLSIGHT_GREETING_BYTES 16

/*
 Inode of the pid namespace that a machine starts with: [`RingControl::pid_namespace`].
 */
#define CALLSIGHT_FIRST_PID_NAMESPACE 4026531836

/*
 The ring of pages.
 */
#define CALLSIGHT_RING_VERSION 3

/*
 The ring that is one byte stream (2).
 */
#define CALLSIGHT_RING_VERSION_STREAM 2

/*
 Bytes of [`RingHeader`] (2).
 */
#define CALLSIGHT_RING_HEADER_BYTES 96

/*
 Ring bytes where nobody said otherwise (2).
 */
#define CALLSIGHT_RING_DEFAULT_BYTES (16 << 20)

/*
 The smallest ring (2); a smaller size asked for gives the default.
 */
#define CALLSIGHT_RING_MIN_BYTES 4096

/*
 Offset of [`RingControl`].
 */
#define CALLSIGHT_RING_CONTROL_OFFSET CALLSIGHT_RING_HEADER_BYTES

/*
 Bytes of [`RingControl`].
 */
#define CALLSIGHT_RING_CONTROL_BYTES 160

/*
 Offset of the free bits.
 */
#define CALLSIGHT_RING_BITMAP_OFFSET 256

/*
 Words of 64 bits in the free bits.
 */
#define CALLSIGHT_RING_BITMAP_WORDS 16

/*
 Most pages of a ring.
 */
#define CALLSIGHT_RING_MAX_PAGES 1024

/*
 Offset of the first [`RingProcess`].
 */
#define CALLSIGHT_RING_PROCESSES_OFFSET 512

/*
 How many [`RingProcess`] entries there are.
 */
#define CALLSIGHT_RING_PROCESSES 112

/*
 Bytes of [`RingProcess`].
 */
#define CALLSIGHT_RING_PROCESS_BYTES 32

/*
 Offset of the first [`RingWriter`].
 */
#define CALLSIGHT_RING_WRITERS_OFFSET 4096

/*
 Bytes of [`RingWriter`].
 */
#define CALLSIGHT_RING_WRITER_BYTES 128

/*
 Bytes of [`PageHeader`].
 */
#define CALLSIGHT_PAGE_HEADER_BYTES 96

/*
 [`RingControl::command`]: store events.
 */
#define CALLSIGHT_COMMAND_RECORD 1

/*
 [`RingControl::command`]: claim no page until told to record; the calls made meanwhile are
 not recorded and are no loss.
 */
#define CALLSIGHT_COMMAND_PAUSE 2

/*
 [`RingControl::command`]: claim no page any more.
 */
#define CALLSIGHT_COMMAND_STOP 3

/*
 [`RingControl::command`]: this ring is finished; its name may already be another's.
 */
#define CALLSIGHT_COMMAND_CLOSED 4

/*
 [`RingProcess::state`]: free.
 */
#define CALLSIGHT_PROCESS_FREE 0

/*
 [`RingProcess::state`]: counted in `writers`.
 */
#define CALLSIGHT_PROCESS_ATTACHED 1

/*
 [`RingProcess::state`]: ended its recording in order; may still store late events.
 */
#define CALLSIGHT_PROCESS_DETACHED 2

/*
 Bit of [`PageHeader::owner`]: the writer has left the page and stores nothing more in it.
 */
#define CALLSIGHT_PAGE_RETIRED 9223372036854775808ull

/*
 Version of the stream (2).
 */
#define CALLSIGHT_STREAM_VERSION 2

/*
 Bytes of [`Handshake`] (2).
 */
#define CALLSIGHT_HANDSHAKE_BYTES 64

/*
 Bytes of [`ChunkHeader`] (2).
 */
#define CALLSIGHT_CHUNK_HEADER_BYTES 12

/*
 Most bytes a chunk may hold uncompressed.
 */
#define CALLSIGHT_CHUNK_MAX_RAW_BYTES (1 << 20)

/*
 Most bytes a chunk may take compressed: the bound of zstd for [`CHUNK_MAX_RAW_BYTES`].
 */
#define CALLSIGHT_CHUNK_MAX_ZSTD_BYTES ((CALLSIGHT_CHUNK_MAX_RAW_BYTES + (CALLSIGHT_CHUNK_MAX_RAW_BYTES >> 8)) + 64)

/*
 Largest zstd window a chunk may ask for, in bytes.
 */
#define CALLSIGHT_CHUNK_MAX_WINDOW_BYTES (8 << 20)

/*
 Bytes of raw events the drain puts in a chunk (2).
 */
#define CALLSIGHT_CHUNK_RAW_BYTES (64 << 10)

/*
 Seconds a peer has to send its handshake.
 */
#define CALLSIGHT_HANDSHAKE_DEADLINE_S 5

/*
 The port of device ingest.
 */
#define CALLSIGHT_STREAM_PORT 9001

/*
 [`ChunkHeader::kind`]: raw events (2).
 */
#define CALLSIGHT_CHUNK_EVENTS 0

/*
 [`ChunkHeader::kind`]: events dropped so far, u64 (2).
 */
#define CALLSIGHT_CHUNK_DROPPED 1

/*
 [`ChunkHeader::kind`]: who is sending.
 */
#define CALLSIGHT_CHUNK_HELLO 2

/*
 [`ChunkHeader::kind`]: packed events of one writer.
 */
#define CALLSIGHT_CHUNK_BLOCK 3

/*
 [`ChunkHeader::kind`]: end of the stream.
 */
#define CALLSIGHT_CHUNK_END 5

/*
 [`ChunkHeader::kind`]: what became of the stream in this capture; the last chunk of it.
 */
#define CALLSIGHT_CHUNK_SINK 6

/*
 Field of [`CHUNK_HELLO`]: host name, UTF-8.
 */
#define CALLSIGHT_HELLO_HOSTNAME 1

/*
 Field of [`CHUNK_HELLO`]: operating system and release, UTF-8.
 */
#define CALLSIGHT_HELLO_OS 2

/*
 Field of [`CHUNK_HELLO`]: machine architecture as `uname -m` says it.
 */
#define CALLSIGHT_HELLO_ARCH 3

/*
 Field of [`CHUNK_HELLO`]: what tells two runs of a machine apart: the kernel's boot id.
 */
#define CALLSIGHT_HELLO_CLOCK 4

/*
 Field of [`CHUNK_HELLO`]: pid of the first traced process, u32.
 */
#define CALLSIGHT_HELLO_PID 5

/*
 Field of [`CHUNK_HELLO`]: path of its executable.
 */
#define CALLSIGHT_HELLO_EXE 6

/*
 Field of [`CHUNK_HELLO`]: its GNU build-id, raw bytes.
 */
#define CALLSIGHT_HELLO_BUILD_ID 7

/*
 Field of [`CHUNK_HELLO`]: name of the service on that machine, UTF-8.
 */
#define CALLSIGHT_HELLO_SERVICE_ID 8

/*
 Field of [`CHUNK_HELLO`]: what the server wants to see, opaque.
 */
#define CALLSIGHT_HELLO_TOKEN 9

/*
 Field of [`CHUNK_HELLO`]: which stream this is, 16 random bytes: the same on every connection
 of a sender that can pack.
 */
#define CALLSIGHT_HELLO_STREAM 10

/*
 Bytes of [`HELLO_STREAM`].
 */
#define CALLSIGHT_STREAM_ID_BYTES 16

/*
 Field of [`CHUNK_HELLO`]: how many records of its ring other drains have taken before, u64. What
 the writers number below the first record of this stream is theirs.
 */
#define CALLSIGHT_HELLO_TAKEN 11

/*
 Field of [`CHUNK_END`]: u32, one of `END_*`.
 */
#define CALLSIGHT_END_REASON 1

/*
 Field of [`CHUNK_END`]: records emitted by all writers, u64.
 */
#define CALLSIGHT_END_EMITTED 2

/*
 Field of [`CHUNK_END`]: records of the rings sent in chunks of type 0, u64.
 */
#define CALLSIGHT_END_DELIVERED 3

/*
 Field of [`CHUNK_END`]: u32 cause ([`Cause`](crate::Cause)), then u64 events; once a cause.
 After [`END_DONE`] all that was lost and no earlier drain's stream told; after [`END_STOPPED`]
 what the notes of this stream told, for the rest is still in the ring.
 */
#define CALLSIGHT_END_DROPPED 4

/*
 Field of [`CHUNK_END`]: number of the last block, u64.
 */
#define CALLSIGHT_END_BLOCKS 5

/*
 Field of [`CHUNK_END`]: what the sender did not send on this way, up to the end; the value is
 that of [`SINK_DROPPED`]. The end in a capture that its own sender stored need not have it: the
 capture's [`CHUNK_SINK`] tells the same.
 */
#define CALLSIGHT_END_SINK_DROPPED 6

/*
 Field of [`CHUNK_END`]: as [`END_DROPPED`], but of the ring's whole life: all that its writers lost,
 whoever told it. After [`END_DONE`], from a drain that was not the ring's first: what a drain that was
 killed had told may be in no stream.
 */
#define CALLSIGHT_END_RING_DROPPED 7

/*
 [`END_REASON`]: every traced process is gone and the ring is empty.
 */
#define CALLSIGHT_END_DONE 1

/*
 [`END_REASON`]: the drain was told to end.
 */
#define CALLSIGHT_END_STOPPED 2

/*
 Field of [`CHUNK_SINK`]: u32 cause ([`Cause`](crate::Cause)), then how many enters and exits did
 not get into this capture (u64), and of how many records they are (u64), which are what gaps in
 the numbers of writers count. Once a cause. Where the value has only 12 bytes, the second count
 is the first.
 */
#define CALLSIGHT_SINK_DROPPED 1

/*
 Field of [`CHUNK_SINK`]: how the stream ended here, u32, a
 [`StopReason`](crate::StopReason).
 */
#define CALLSIGHT_SINK_REASON 2

/*
 Field of [`CHUNK_SINK`]: why nothing more was stored: marker code u64 (`MARK_*`), payload u64.
 */
#define CALLSIGHT_SINK_STOP 3

/*
 Why events are missing. The numbers are the wire's and the ring's.
 */
enum callsight_cause
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /*
   No free page in the ring.
   */
  CALLSIGHT_CAUSE_FULL = 0,
  /*
   No writer slot for the thread.
   */
  CALLSIGHT_CAUSE_NO_SLOT = 1,
  /*
   A hook ran while this thread's recording was being set up.
   */
  CALLSIGHT_CAUSE_REENTRANT = 2,
  /*
   Left behind by a fork.
   */
  CALLSIGHT_CAUSE_FORK = 3,
  /*
   Being written when its writer was killed or jumped away; at most one a nested hook.
   */
  CALLSIGHT_CAUSE_TORN = 4,
  /*
   A disk budget or an event limit was reached.
   */
  CALLSIGHT_CAUSE_BUDGET = 5,
  /*
   The file system took no more (no space, no such directory, file size limit).
   */
  CALLSIGHT_CAUSE_IO = 6,
  /*
   The recording was stopped by command, or this thread was not yet one that is wanted.
   */
  CALLSIGHT_CAUSE_STOPPED = 7,
  /*
   A sink did not keep up, and its queue was full.
   */
  CALLSIGHT_CAUSE_QUEUE = 8,
  /*
   Sent, or taken out of the ring, and never acknowledged.
   */
  CALLSIGHT_CAUSE_UNACKED = 9,
  /*
   A sink that had failed.
   */
  CALLSIGHT_CAUSE_SINK_DEAD = 10,
  /*
   Refused by the server: it was damaged on the way, or against its limits.
   */
  CALLSIGHT_CAUSE_REJECTED = 11,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum callsight_cause callsight_cause;
#else
typedef uint32_t callsight_cause;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/*
 Why recording stopped, or was not done as asked ([`NOTE_STOP`]).
 */
enum callsight_stop_reason
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /*
   The ring of `TRACE_SHM` could not be used; files were written instead. Text: why.
   */
  CALLSIGHT_STOP_REASON_RING_UNUSABLE = 1,
  /*
   The process ended its recording in order.
   */
  CALLSIGHT_STOP_REASON_END = 2,
  /*
   `/proc` could not be read: modules are unknown.
   */
  CALLSIGHT_STOP_REASON_NO_MODULES = 3,
  /*
   A stream broke off before its end; written by the server that received it.
   */
  CALLSIGHT_STOP_REASON_CUT = 4,
  /*
   A stream was received to its end; written by the server.
   */
  CALLSIGHT_STOP_REASON_CLOSED = 5,
  /*
   The process had not ended when its events were taken; written into a snapshot.
   */
  CALLSIGHT_STOP_REASON_GOES_ON = 6,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum callsight_stop_reason callsight_stop_reason;
#else
typedef uint32_t callsight_stop_reason;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/*
 One enter or exit of a function, or a marker.

 `ts` is stored last, with release order: a slot whose `ts` is 0 holds no event yet.
 */
struct callsight_event {
  /*
   Clock ticks, or nanoseconds when [`FLAG_TICKS`](crate::FLAG_TICKS) is clear. Never 0.
   */
  uint64_t ts;
  /*
   Address of the function in the traced process, or the marker code.
   */
  uint64_t func;
  /*
   Return address in the caller, or the marker payload.
   */
  uint64_t call_site;
  /*
   Kernel thread id.
   */
  uint32_t tid;
  /*
   One of `KIND_*`.
   */
  uint8_t kind;
  /*
   Bits 4 to 27 of the stack pointer at the hook, low byte first; 0 from other producers.
   */
  uint8_t frame[3];
};

/*
 Header of an event file.
 */
struct callsight_file_header {
  /*
   [`FILE_MAGIC`].
   */
  uint8_t magic[8];
  /*
   [`FILE_VERSION`].
   */
  uint32_t version;
  /*
   [`EVENT_BYTES`].
   */
  uint32_t event_size;
  /*
   Where the first event stands, from the start of the file.
   */
  uint32_t header_size;
  /*
   See [`Origin::flags`].
   */
  uint32_t flags;
  /*
   See [`Origin::load_bias`].
   */
  uint64_t load_bias;
  /*
   See [`Origin::tick_hz`].
   */
  uint64_t tick_hz;
  /*
   See [`Origin::t0_ticks`].
   */
  uint64_t t0_ticks;
  /*
   See [`Origin::t0_ns`].
   */
  uint64_t t0_ns;
  /*
   See [`Origin::hook_ns`].
   */
  uint64_t hook_ns;
  /*
   Process id; the number of the stream in a streamed file.
   */
  uint32_t pid;
  /*
   Number of the segment, from 0.
   */
  uint32_t seq;
  /*
   0.
   */
  uint64_t reserved;
};

/*
 Header of a summary file.
 */
struct callsight_summary_header {
  /*
   [`SUMMARY_MAGIC`].
   */
  uint8_t magic[8];
  /*
   [`SUMMARY_VERSION`].
   */
  uint32_t version;
  /*
   Bytes of one record.
   */
  uint32_t record_size;
  /*
   Where the first record stands.
   */
  uint32_t header_size;
  /*
   See [`Origin::flags`].
   */
  uint32_t flags;
  /*
   See [`Origin::load_bias`].
   */
  uint64_t load_bias;
  /*
   See [`Origin::tick_hz`].
   */
  uint64_t tick_hz;
  /*
   See [`Origin::t0_ticks`].
   */
  uint64_t t0_ticks;
  /*
   See [`Origin::t0_ns`].
   */
  uint64_t t0_ns;
  /*
   See [`Origin::hook_ns`].
   */
  uint64_t hook_ns;
  /*
   Process id.
   */
  uint32_t pid;
  /*
   Thread id.
   */
  uint32_t tid;
  /*
   How many records follow.
   */
  uint64_t records;
  /*
   Last time minus first time, in the clock's unit.
   */
  uint64_t span;
  /*
   Calls deeper than the shadow stack, which are not in any record.
   */
  uint64_t truncated;
  /*
   Number of hardware counters.
   */
  uint32_t counter_n;
  /*
   0.
   */
  uint32_t pad;
  /*
   perf type of each counter.
   */
  uint32_t counter_type[3];
  /*
   0.
   */
  uint32_t pad2;
  /*
   perf configuration of each counter.
   */
  uint64_t counter_config[3];
  /*
   What a hook adds to each counter.
   */
  uint64_t counter_self[3];
  /*
   ns a counter read costs.
   */
  uint64_t counter_read_ns;
  /*
   Calls whose counters were not read.
   */
  uint64_t counter_skipped;
  /*
   Reads that were multiplexed.
   */
  uint64_t counter_mux;
};

/*
 One function of one thread in a summary file.
 */
struct callsight_summary_record {
  /*
   Run-time address of the function.
   */
  uint64_t func;
  /*
   Calls.
   */
  uint64_t calls;
  /*
   Inclusive time, in the clock's unit.
   */
  uint64_t inclusive;
  /*
   Self time, in the clock's unit.
   */
  uint64_t own;
  /*
   Shortest call, in the clock's unit.
   */
  uint64_t min;
  /*
   Longest call, in the clock's unit.
   */
  uint64_t max;
  /*
   Calls by duration; see [`summary_bucket`].
   */
  uint32_t histogram[CALLSIGHT_SUMMARY_BUCKETS];
  /*
   Calls whose counters were read.
   */
  uint64_t counter_calls;
  /*
   Sums of the counters over those calls.
   */
  uint64_t counter_inclusive[3];
  /*
   The same without callees.
   */
  uint64_t counter_own[3];
};

/*
 Header of the shared memory object, the same in versions 2 and 3.

 From `flags` on it is written once, by the first traced process, and forwarded by the drain.
 */
struct callsight_ring_header {
  /*
   [`RING_MAGIC`].
   */
  uint8_t magic[8];
  /*
   [`RING_VERSION`] or [`RING_VERSION_STREAM`].
   */
  uint32_t version;
  /*
   Bytes that hold events (and page headers).
   */
  uint32_t capacity;
  /*
   Traced processes attached.
   */
  uint32_t writers;
  /*
   Version 2: 1 while held. Version 3: tid of the holder, for attach and detach only.
   */
  uint32_t lock;
  /*
   Bytes published since the ring was made. Version 3: as counted when pages are left.
   */
  uint64_t head;
  /*
   Bytes consumed since the ring was made.
   */
  uint64_t tail;
  /*
   Events dropped. Version 3: as last summed over the slots by the drain or a process that
   detached.
   */
  uint64_t dropped;
  /*
   Bit set of `FLAG_*`.
   */
  uint32_t flags;
  /*
   Version 2, by the drain: how many of those dropped the notes tell that it has taken out, so that the
   next one does not; not more than fits. Version 3: 0.
   */
  uint32_t told;
  /*
   What to subtract from an address of the executable to get its address in the ELF file.
   */
  uint64_t load_bias;
  /*
   Ticks a second; 0 when times are in ns.
   */
  uint64_t tick_hz;
  /*
   Ticks at the opening clock anchor.
   */
  uint64_t t0_ticks;
  /*
   `CLOCK_MONOTONIC` in ns at the opening clock anchor; 0 until a traced process attached.
   */
  uint64_t t0_ns;
  /*
   Measured cost of one hook, in ns.
   */
  uint64_t hook_ns;
};

/*
 The words of version 3 behind the header.
 */
struct callsight_ring_control {
  /*
   Bytes of a page, a power of two.
   */
  uint32_t page_bytes;
  /*
   Pages.
   */
  uint32_t page_count;
  /*
   Writer slots.
   */
  uint32_t slot_count;
  /*
   Offset of the first page, a multiple of 4096.
   */
  uint32_t pages_offset;
  /*
   One of `COMMAND_*`. Written by the drain.
   */
  uint32_t command;
  /*
   The drain's pid, 0 for none. Changed by compare-and-swap: one drain at a time.
   */
  uint32_t drain_pid;
  /*
   The drain's start time (field 22 of `/proc/PID/stat`).
   */
  uint64_t drain_start;
  /*
   Records dropped by threads that found no slot.
   */
  uint64_t no_slot;
  /*
   Records emitted (stored or dropped) in slots that were used and given back.
   */
  uint64_t retired_emitted;
  /*
   `dropped` of slots that were used and given back, by cause.
   */
  uint64_t retired_dropped[CALLSIGHT_RING_CAUSES];
  /*
   The drain that made it as a spare ([`RING_SPARE_PREFIX`]); 0 for a ring that a process made.
   */
  uint32_t spare_maker;
  /*
   Which server has greeted a drain of this ring, so that the next drain knows one that takes blocks
   though it is silent just then: a number that the drain makes of host and port; 0 for none.
   */
  uint32_t greeted_by;
  /*
   The pid namespace of whoever made it: inode of `/proc/self/ns/pid`; 0 where it is not known.
   */
  uint64_t pid_namespace;
  /*
   0.
   */
  uint64_t reserved[4];
};

/*
 A traced process of this ring.
 */
struct callsight_ring_process {
  /*
   One of `PROCESS_FREE`, `PROCESS_ATTACHED`, `PROCESS_DETACHED`.
   */
  uint32_t state;
  /*
   Process id.
   */
  uint32_t pid;
  /*
   Start time (field 22 of `/proc/PID/stat`).
   */
  uint64_t start;
  /*
   0.
   */
  uint64_t reserved[2];
};

/*
 A thread of a traced process: who it is, and what it lost.
 */
struct callsight_ring_writer {
  /*
   Process id; 0 when the slot is free. Claimed by compare-and-swap.
   */
  uint32_t pid;
  /*
   Kernel thread id; 0 while the slot is being set up.
   */
  uint32_t tid;
  /*
   Start time of the process (field 22 of `/proc/PID/stat`).
   */
  uint64_t start;
  /*
   Number of the page it writes to, plus one; 0 for none.
   */
  uint32_t page;
  /*
   0; while the drain moves a count of a dead writer to the retired ones: the number of its cause
   plus one, or [`RING_CAUSES`] plus one for `stored`. What `retired_emitted` and the retired count
   of the cause come to stands in `untold_first` and `untold_last` then, so that a next drain can
   end the move.
   */
  uint16_t moves;
  /*
   1 where its thread has left out calls in a pause and no note in the data tells that yet; else 0.
   */
  uint16_t pause_untold;
  /*
   Records stored in pages that it has left. With those dropped, how many it has emitted.
   */
  uint64_t stored;
  /*
   Events dropped, by [`Cause`](crate::Cause).
   */
  uint64_t dropped[CALLSIGHT_RING_CAUSES];
  /*
   Of these, how many a loss note in the data has told, over all causes.
   */
  uint64_t told;
  /*
   Time of the first and of the last event dropped and not told.
   */
  uint64_t untold_first;
  /*
   See `untold_first`.
   */
  uint64_t untold_last;
  /*
   Number of the first record of its thread: 0 unless another one of its process had the slot.
   */
  uint64_t begin;
};

/*
 Start of a page.
 */
struct callsight_page_header {
  /*
   0 for a free page; else the owner's slot number plus one, and [`PAGE_RETIRED`].
   */
  uint64_t owner;
  /*
   Process id of the writer; 0 while the owner is filling this header.
   */
  uint32_t pid;
  /*
   Thread id of the writer.
   */
  uint32_t tid;
  /*
   Start time of the writer's process.
   */
  uint64_t start;
  /*
   Number of the first record of this page.
   */
  uint64_t first;
  /*
   What the writer had dropped before this page: `full`, `reentrant`, `fork`, `torn`.
   */
  uint32_t lost_before[4];
  /*
   Bytes of the page that the drain has consumed, this header included; 0 means none.
   */
  uint32_t read;
  /*
   0.
   */
  uint32_t pad;
  /*
   All events the writer had dropped before this page, of any cause.
   */
  uint64_t lost_total;
  /*
   Number of the first record of this thread: one that takes over the slot of a thread that has
   ended goes on with its numbers.
   */
  uint64_t begin;
  /*
   `lost_total` when this thread began.
   */
  uint64_t begin_lost;
  /*
   0.
   */
  uint64_t reserved[2];
};

/*
 First bytes of a stream: what its clock words mean.
 */
struct callsight_handshake {
  /*
   [`STREAM_MAGIC`].
   */
  uint8_t magic[8];
  /*
   [`STREAM_VERSION`].
   */
  uint32_t version;
  /*
   [`EVENT_BYTES`].
   */
  uint32_t event_size;
  /*
   See [`Origin::flags`].
   */
  uint32_t flags;
  /*
   0.
   */
  uint32_t pad;
  /*
   See [`Origin::load_bias`].
   */
  uint64_t load_bias;
  /*
   See [`Origin::tick_hz`].
   */
  uint64_t tick_hz;
  /*
   See [`Origin::t0_ticks`].
   */
  uint64_t t0_ticks;
  /*
   See [`Origin::t0_ns`].
   */
  uint64_t t0_ns;
  /*
   See [`Origin::hook_ns`].
   */
  uint64_t hook_ns;
};

/*
 What stands before each chunk.
 */
struct callsight_chunk_header {
  /*
   One of `CHUNK_*`.
   */
  uint32_t kind;
  /*
   Bytes of the payload once decompressed.
   */
  uint32_t raw_len;
  /*
   Bytes of the payload as sent.
   */
  uint32_t zstd_len;
};

/*
 Start of a block. Little-endian.
 */
struct callsight_block_header {
  /*
   CRC-32C (RFC 3720, appendix B.4) of all that follows in the block.
   */
  uint32_t crc;
  /*
   [`BLOCK_HEADER_BYTES`]; readers skip what they do not know.
   */
  uint16_t header_bytes;
  /*
   0.
   */
  uint16_t flags;
  /*
   Number of the block in its stream, from 1.
   */
  uint64_t number;
  /*
   The writer: start time of its process (field 22 of `/proc/PID/stat`).
   */
  uint64_t start;
  /*
   Number of the first record, in the writer's numbering.
   */
  uint64_t first;
  /*
   The writer: its process.
   */
  uint32_t pid;
  /*
   The writer: its thread.
   */
  uint32_t tid;
  /*
   How many records there are.
   */
  uint32_t records;
  /*
   How many of them are enters and exits.
   */
  uint32_t calls;
  /*
   How many of them have numbers, from `first` on. Those of a version 2 ring have none.
   */
  uint32_t numbered;
  /*
   0.
   */
  uint32_t pad;
  /*
   Time of the first record.
   */
  uint64_t first_ts;
  /*
   Events the writer had dropped before this block, of any cause.
   */
  uint64_t lost_total;
  /*
   Of these, by cause: `full`, `reentrant`, `fork`, `torn`, the low 32 bits each.
   */
  uint32_t lost[4];
  /*
   Frame of the first record.
   */
  uint32_t frame;
  /*
   Bytes of the columns behind `ops` and `times`, in order.
   */
  uint32_t time_bytes;
  /*
   See `time_bytes`.
   */
  uint32_t id_bytes;
  /*
   See `time_bytes`.
   */
  uint32_t name_bytes;
  /*
   See `time_bytes`.
   */
  uint32_t frame_bytes;
  /*
   See `time_bytes`.
   */
  uint32_t literal_bytes;
};

#define CALLSIGHT_FILE_MAGIC "MLTRACE\0"
#define CALLSIGHT_SUMMARY_MAGIC "MLSUMRY\0"
#define CALLSIGHT_RING_MAGIC "TKSHM\0\0\0"
#define CALLSIGHT_STREAM_MAGIC "TKSTREAM"
#define CALLSIGHT_GREETING_MAGIC "TKSERVE\0"
#define CALLSIGHT_RING_UNBORN_PREFIX ".callsight-"
#define CALLSIGHT_RING_SPARE_PREFIX ".callsight-spare-"

/* The same sizes as the Rust compiler asserts; an array of negative size stops a C99 compiler. */
typedef char callsight_event_is_32_bytes[sizeof(struct callsight_event) == 32 ? 1 : -1];
typedef char callsight_file_header_is_80_bytes[sizeof(struct callsight_file_header) == 80 ? 1 : -1];
typedef char callsight_summary_header_is_192_bytes[sizeof(struct callsight_summary_header) == 192 ? 1 : -1];
typedef char callsight_summary_record_is_744_bytes[sizeof(struct callsight_summary_record) == 744 ? 1 : -1];
typedef char callsight_ring_header_is_96_bytes[sizeof(struct callsight_ring_header) == 96 ? 1 : -1];
typedef char callsight_ring_control_is_160_bytes[sizeof(struct callsight_ring_control) == 160 ? 1 : -1];
typedef char callsight_ring_process_is_32_bytes[sizeof(struct callsight_ring_process) == 32 ? 1 : -1];
typedef char callsight_ring_writer_is_128_bytes[sizeof(struct callsight_ring_writer) == 128 ? 1 : -1];
typedef char callsight_page_header_is_96_bytes[sizeof(struct callsight_page_header) == 96 ? 1 : -1];
typedef char callsight_handshake_is_64_bytes[sizeof(struct callsight_handshake) == 64 ? 1 : -1];
typedef char callsight_chunk_header_is_12_bytes[sizeof(struct callsight_chunk_header) == 12 ? 1 : -1];
typedef char callsight_block_header_is_112_bytes[sizeof(struct callsight_block_header) == 112 ? 1 : -1];
