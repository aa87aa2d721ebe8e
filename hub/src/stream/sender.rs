//! Who is sending, and how a stream ended: fields of the wire → named values.
//!
//! All of it was written by the other side: text is made printable here, and nothing in it is
//! ever used as a path.

use callsight_format::{
    ByteOrder, Cause, END_BLOCKS, END_DELIVERED, END_DONE, END_DROPPED, END_EMITTED, END_REASON,
    END_RING_DROPPED, END_SINK_DROPPED, END_STOPPED, Fields, HELLO_ARCH, HELLO_BUILD_ID,
    HELLO_CLOCK, HELLO_EXE, HELLO_HOSTNAME, HELLO_OS, HELLO_PID, HELLO_SERVICE_ID, HELLO_STREAM,
    HELLO_TAKEN, HELLO_TOKEN, STREAM_ID_BYTES,
};

use crate::{Dropped, Losses};

/// The longest text kept of one field, in characters: a path fits.
const MAX_TEXT: usize = 4096;

/// Which stream this is, on whatever connection: random bytes of its sender.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct StreamId([u8; STREAM_ID_BYTES]);

impl StreamId {
    /// The id with these bytes; `None` where they are not as many as an id has.
    pub fn parse(bytes: &[u8]) -> Option<StreamId> {
        bytes.try_into().ok().map(StreamId)
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl std::fmt::Display for StreamId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&hexadecimal(&self.0))
    }
}

impl std::fmt::Debug for StreamId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StreamId({self})")
    }
}

/// Who a stream says it comes from. What it does not say is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sender {
    /// Host name.
    pub host: String,
    /// Operating system and release.
    pub os: String,
    /// Machine architecture.
    pub arch: String,
    /// Boot id of the kernel: which clock the times are from.
    pub clock: String,
    /// First traced process.
    pub pid: Option<u32>,
    /// Its executable.
    pub exe: String,
    /// Its GNU build-id, in hexadecimal.
    pub build_id: String,
    /// Name of the service on that machine.
    pub service: String,
    /// Which of its streams this is, of one that packs.
    pub stream: Option<StreamId>,
    /// How many records of its ring other drains had taken before.
    pub taken: u64,
}

impl Sender {
    /// Reads the payload of a chunk of type 2. Fields that are not known are skipped; the token
    /// is a secret and not kept.
    pub fn parse(payload: &[u8]) -> Sender {
        let mut sender = Sender::default();
        for (key, value) in Fields(payload) {
            match key {
                HELLO_HOSTNAME => sender.host = printable(value),
                HELLO_OS => sender.os = printable(value),
                HELLO_ARCH => sender.arch = printable(value),
                HELLO_CLOCK => sender.clock = printable(value),
                HELLO_PID => sender.pid = ByteOrder::Little.u32(value, 0),
                HELLO_EXE => sender.exe = printable(value),
                HELLO_BUILD_ID => sender.build_id = hexadecimal(value),
                HELLO_SERVICE_ID => sender.service = printable(value),
                HELLO_STREAM => sender.stream = StreamId::parse(value),
                HELLO_TAKEN => sender.taken = ByteOrder::Little.u64(value, 0).unwrap_or(0),
                _ => {}
            }
        }
        sender
    }

    /// The fields as JSON, under the names of [`Sender`]; what was not said is absent.
    pub fn to_json(&self) -> serde_json::Map<String, serde_json::Value> {
        let texts = [
            ("host", &self.host),
            ("os", &self.os),
            ("arch", &self.arch),
            ("clock", &self.clock),
            ("exe", &self.exe),
            ("build_id", &self.build_id),
            ("service", &self.service),
        ];
        let said = texts.into_iter().filter(|(_, text)| !text.is_empty());
        let mut json: serde_json::Map<_, _> =
            said.map(|(name, text)| (name.to_owned(), text.as_str().into())).collect();
        if let Some(pid) = self.pid {
            json.insert("pid".to_owned(), pid.into());
        }
        if let Some(stream) = self.stream {
            json.insert("stream".to_owned(), stream.to_string().into());
        }
        json
    }
}

/// For people: `exe (pid 7) on host, os arch, build-id abc`.
impl std::fmt::Display for Sender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let or = |text: &str, other: &str| if text.is_empty() { other } else { text }.to_owned();
        write!(f, "{}", or(&self.exe, "a program"))?;
        if let Some(pid) = self.pid {
            write!(f, " (pid {pid})")?;
        }
        write!(f, " on {}", or(&self.host, "an unnamed host"))?;
        let system = format!("{} {}", self.os, self.arch);
        if !system.trim().is_empty() {
            write!(f, ", {}", system.trim())?;
        }
        if !self.build_id.is_empty() {
            write!(f, ", build-id {}", self.build_id)?;
        }
        Ok(())
    }
}

/// The payload of a chunk of type 2 without its token; `None` where it has none.
pub(super) fn without_token(payload: &[u8]) -> Option<Vec<u8>> {
    Fields(payload).find(|(key, _)| *key == HELLO_TOKEN)?;
    let kept = Fields(payload).filter(|(key, _)| *key != HELLO_TOKEN);
    let field = |(key, value): (u16, &[u8])| {
        [&key.to_le_bytes()[..], &(value.len() as u16).to_le_bytes(), value].concat()
    };
    Some(kept.flat_map(field).collect())
}

/// What a stream says of itself in its last chunk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamEnd {
    /// Why it ended, one of `END_*`; 0 where it does not say.
    pub reason: u32,
    /// Records that all writers emitted.
    pub emitted_records: Option<u64>,
    /// Records of the ring that were sent as raw events.
    pub delivered_records: Option<u64>,
    /// Number of the last block.
    pub blocks: Option<u64>,
    /// Events dropped, by cause.
    pub dropped_events: Losses,
    /// Events that the writers of its ring dropped in its whole life, those that found no place in it
    /// left out; 0 where it does not say.
    pub ring_dropped: u64,
    /// What its sender had and did not send.
    pub not_sent: Dropped,
}

impl StreamEnd {
    /// Reads the payload of a chunk of type 5. Fields that are not known are skipped; a cause
    /// that is not known counts as [`Cause::Full`], so that its events stay in the sum.
    pub fn parse(payload: &[u8]) -> StreamEnd {
        let le = ByteOrder::Little;
        let mut end = StreamEnd::default();
        for (key, value) in Fields(payload) {
            match key {
                END_REASON => end.reason = le.u32(value, 0).unwrap_or(0),
                END_EMITTED => end.emitted_records = le.u64(value, 0),
                END_DELIVERED => end.delivered_records = le.u64(value, 0),
                END_BLOCKS => end.blocks = le.u64(value, 0),
                END_DROPPED | END_RING_DROPPED => {
                    let cause = le.u32(value, 0).and_then(Cause::from_number);
                    let events = le.u64(value, 4).unwrap_or(0);
                    if key == END_DROPPED {
                        end.dropped_events.add(cause.unwrap_or(Cause::Full), events);
                    } else if cause != Some(Cause::NoSlot) {
                        end.ring_dropped = end.ring_dropped.saturating_add(events);
                    }
                }
                END_SINK_DROPPED => end.not_sent.add_field(value),
                _ => {}
            }
        }
        end
    }

    /// The reason in words.
    pub fn reason_text(&self) -> &'static str {
        match self.reason {
            END_DONE => "every traced process is gone",
            END_STOPPED => "the drain was told to end",
            _ => "for a reason this callsight does not know",
        }
    }
}

/// Text from the other side with nothing in it that a terminal would act on.
pub fn printable(text: &[u8]) -> String {
    in_one_line(&String::from_utf8_lossy(text).chars().take(MAX_TEXT).collect::<String>())
}

/// Text that others chose, such as the name of a ring, as part of a line: what would end the line, or
/// do something to a terminal, stands as `\x0a`, as the drain writes it.
pub fn in_one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        match c.is_control() {
            true => line.push_str(&format!("\\x{:02x}", u32::from(c))),
            false => line.push(c),
        }
    }
    line
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().take(MAX_TEXT / 2).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(fields: &[(u16, &[u8])]) -> Vec<u8> {
        let field = |(key, value): &(u16, &[u8])| {
            [&key.to_le_bytes()[..], &(value.len() as u16).to_le_bytes(), value].concat()
        };
        fields.iter().flat_map(field).collect()
    }

    #[test]
    fn a_sender_says_who_it_is_and_its_token_is_not_kept() {
        let bytes = fields(&[
            (HELLO_HOSTNAME, b"board\x1b[2J"),
            (HELLO_ARCH, b"aarch64"),
            (HELLO_PID, &7u32.to_le_bytes()),
            (HELLO_EXE, b"/bin/app"),
            (HELLO_BUILD_ID, &[0xab, 0x01]),
            (callsight_format::HELLO_TOKEN, b"secret"),
            (999, b"later"),
        ]);
        let sender = Sender::parse(&bytes);
        assert_eq!(sender.to_string(), "/bin/app (pid 7) on board\\x1b[2J, aarch64, build-id ab01");
        let json = serde_json::to_string(&sender.to_json()).expect("JSON");
        assert!(json.contains(r#""exe":"/bin/app""#) && json.contains(r#""pid":7"#), "{json}");
        assert!(!json.contains("secret") && !json.contains("service"), "{json}");
    }

    #[test]
    fn an_end_is_read_and_unknown_causes_stay_in_the_sum() {
        let loss = |cause: u32, events: u64| {
            [&cause.to_le_bytes()[..], &events.to_le_bytes()[..]].concat()
        };
        let bytes = fields(&[
            (END_REASON, &END_DONE.to_le_bytes()),
            (END_EMITTED, &100u64.to_le_bytes()),
            (END_DELIVERED, &80u64.to_le_bytes()),
            (END_DROPPED, &loss(Cause::Torn as u32, 5)),
            (END_DROPPED, &loss(77, 15)),
            (END_RING_DROPPED, &loss(Cause::Full as u32, 70)),
            (END_RING_DROPPED, &loss(Cause::NoSlot as u32, 9)),
            (END_RING_DROPPED, &loss(77, 1)),
        ]);
        let end = StreamEnd::parse(&bytes);
        assert_eq!((end.emitted_records, end.delivered_records), (Some(100), Some(80)));
        assert_eq!(end.ring_dropped, 71);
        assert_eq!(end.dropped_events.of(Cause::Torn), 5);
        assert_eq!(end.dropped_events.sum(), 20);
    }

    #[test]
    fn any_cut_of_the_fields_is_read_without_fuss() {
        let bytes = fields(&[(HELLO_HOSTNAME, b"board"), (END_DROPPED, &[1, 2, 3])]);
        for len in 0..bytes.len() {
            let host = Sender::parse(&bytes[..len]).host;
            assert!(host.is_empty() || host == "board");
            assert_eq!(StreamEnd::parse(&bytes[..len]).dropped_events.sum(), 0);
        }
    }
}
