//! Mends the `:authority` of one connection's header blocks. Owns what must be known of the client's dynamic table.
//! A pure file: takes a whole block, answers with what goes to `h2` in its place.
//!
//! A mended value has the decoded length of the original, so the client's and the server's table stay alike and only
//! the first mention of a value needs mending. No valid value is empty, so an empty value that enters the table ends
//! that: from then on this connection's blocks are decoded here, by the client's table, and written without indexing.
//!
//! A literal whose name is given by an index of the dynamic table is not looked up (no encoder we know writes
//! `:authority` so), and a second `:authority` is left alone: `h2` refuses such a request in any case.

use http::uri::Authority;

use super::hpack::{
    INDEXED, Indexing, Malformed, Reader, Representation, Text, write_integer, write_raw,
    write_text,
};
use super::huffman;
use super::table::{
    Entry, Name, STATIC_AUTHORITY, STATIC_LAST, Table, static_name_length, write_name,
};

/// Notes are worked into a table when they grow past this: decoding them is then spread over many calls, and one
/// connection keeps no more than about this and one table.
const NOTES_BYTES_MAX: usize = 2048;

/// The largest header list written in [`Tracking::Decoding`], in bytes of RFC 7541 4.1. `h2` ends a connection at
/// four times its limit, and the limit is hyper's 16 KiB: what is more than this would not be served anyway.
const LIST_BYTES_MAX: usize = 4 * 16 * 1024;

/// What stands for an empty value.
const STAND_IN: &[u8] = b"x";

/// The header blocks of one connection, client to server.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    tracking: Tracking,
}

/// What goes to `h2` in place of a block.
#[derive(PartialEq, Eq)]
pub(super) enum Outcome {
    /// The block as it came.
    Untouched,
    /// This block.
    Changed(Vec<u8>),
    /// Nothing can: the connection's table is kept here and the block cannot be read.
    Refused,
}

/// What is known of the client's dynamic table.
enum Tracking {
    /// Indexing passes through.
    Noting(Notes),
    /// A block went by that was not read. Indexing passes through; an empty value that enters the table stays as it
    /// is, and `h2` refuses its request.
    Lost,
    /// An empty value has entered the table: blocks are decoded and written without indexing.
    Decoding(Box<Table>),
}

/// The client's table while it is not needed: what was inserted is kept as it came, to be decoded only on the day it is.
#[derive(Default)]
struct Notes {
    /// The table before `latest`; `None` stands for an empty one.
    table: Option<Box<Table>>,
    /// The representations since then that change the table.
    latest: Vec<u8>,
}

/// The result of walking a block while indexing passes through.
enum Walk {
    Untouched,
    Changed(Vec<u8>),
    /// An empty `:authority` enters the dynamic table.
    NeedsDecoding,
}

/// How a value is put right.
enum Remedy {
    /// It is valid already, or `h2` is to refuse it.
    None,
    /// These bytes, in place of the representation from this offset in the block.
    From(usize, Vec<u8>),
    /// No valid value has this length, and it must not change.
    NoneOfThisLength,
}

/// What `h2` would say to a value.
enum Verdict {
    Valid,
    /// Refused by Go servers as well: left for `h2` to refuse, on that stream alone.
    HasControlCharacter,
    Empty,
    Forbidden,
}

impl Default for Tracking {
    fn default() -> Self {
        Self::Noting(Notes::default())
    }
}

impl std::fmt::Debug for Tracking {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Noting(_) => "Noting",
            Self::Lost => "Lost",
            Self::Decoding(_) => "Decoding",
        })
    }
}

impl Blocks {
    /// What goes to `h2` in place of `block`. To be called once for each block of the connection, in order.
    pub(super) fn mend(&mut self, block: &[u8]) -> Outcome {
        match &mut self.tracking {
            Tracking::Decoding(table) => match rewrite(table, block) {
                Ok(rewritten) => Outcome::Changed(rewritten),
                Err(Malformed) => Outcome::Refused,
            },
            Tracking::Lost => Outcome::from(walk(block, &mut Vec::new())),
            Tracking::Noting(known) => {
                let (outcome, next) = known.mend(block);
                if let Some(next) = next {
                    self.tracking = next;
                }
                outcome
            }
        }
    }

    /// To be called when a block goes by unread: what may go to `h2` in its place.
    pub(super) fn skip(&mut self) -> Outcome {
        if matches!(self.tracking, Tracking::Decoding(_)) {
            return Outcome::Refused;
        }
        self.tracking = Tracking::Lost;
        Outcome::Untouched
    }
}

impl From<Result<Walk, Malformed>> for Outcome {
    fn from(walked: Result<Walk, Malformed>) -> Self {
        match walked {
            Ok(Walk::Changed(changed)) => Self::Changed(changed),
            Ok(Walk::Untouched | Walk::NeedsDecoding) | Err(Malformed) => Self::Untouched,
        }
    }
}

impl Notes {
    /// What goes on in place of `block`, and how to go on when not as before.
    fn mend(&mut self, block: &[u8]) -> (Outcome, Option<Tracking>) {
        let before = self.latest.len();
        let walked = walk(block, &mut self.latest);
        match walked {
            Ok(Walk::NeedsDecoding) => {
                // This block is read again from its start, as the first one that is rewritten.
                self.latest.truncate(before);
                match self.table_after(block) {
                    Ok((rewritten, table)) => {
                        (Outcome::Changed(rewritten), Some(Tracking::Decoding(table)))
                    }
                    Err(Malformed) => (Outcome::Untouched, Some(Tracking::Lost)),
                }
            }
            Err(Malformed) => (Outcome::Untouched, Some(Tracking::Lost)),
            Ok(Walk::Untouched | Walk::Changed(_)) if self.latest.len() > NOTES_BYTES_MAX => {
                let lost = match self.table() {
                    Ok(table) => {
                        self.table = Some(table);
                        None
                    }
                    Err(Malformed) => Some(Tracking::Lost),
                };
                (Outcome::from(walked), lost)
            }
            Ok(Walk::Untouched | Walk::Changed(_)) => (Outcome::from(walked), None),
        }
    }

    /// The block written without indexing, and the table after it.
    fn table_after(&mut self, block: &[u8]) -> Result<(Vec<u8>, Box<Table>), Malformed> {
        let mut table = self.table()?;
        let rewritten = rewrite(&mut table, block)?;
        Ok((rewritten, table))
    }

    /// The table with all notes worked in; none are left.
    fn table(&mut self) -> Result<Box<Table>, Malformed> {
        let mut table = self.table.take().unwrap_or_else(|| Box::new(Table::new()));
        table.follow(&std::mem::take(&mut self.latest))?;
        Ok(table)
    }
}

/// Mends a block whose indexing passes through, and notes what it does to the table.
fn walk(block: &[u8], notes: &mut Vec<u8>) -> Result<Walk, Malformed> {
    let mut reader = Reader::new(block);
    let mut changed = Vec::new();
    let mut copied = 0;
    let mut has_authority = false;
    loop {
        let start = reader.position();
        let Some(representation) = reader.next()? else {
            break;
        };
        let end = reader.position();
        if representation.changes_table() {
            notes.extend_from_slice(block.get(start..end).unwrap_or_default());
        }
        if has_authority || !representation.is_authority() {
            continue;
        }
        has_authority = true;
        match remedy(&representation, start)? {
            Remedy::None => {}
            Remedy::NoneOfThisLength => return Ok(Walk::NeedsDecoding),
            Remedy::From(from, with) => {
                changed.extend_from_slice(block.get(copied..from).unwrap_or_default());
                changed.extend_from_slice(&with);
                copied = end;
            }
        }
    }
    if copied == 0 {
        return Ok(Walk::Untouched);
    }
    changed.extend_from_slice(block.get(copied..).unwrap_or_default());
    Ok(Walk::Changed(changed))
}

/// The block written without indexing; what it does to the client's table is done to `table`.
fn rewrite(table: &mut Table, block: &[u8]) -> Result<Vec<u8>, Malformed> {
    let mut reader = Reader::new(block);
    let mut out = Vec::with_capacity(block.len());
    let mut list_bytes = 0;
    let mut has_authority = false;
    while let Some(representation) = reader.next()? {
        match representation {
            Representation::TableSize(bytes_max) => table.resize(bytes_max)?,
            Representation::Indexed(STATIC_AUTHORITY) => {
                let entry = Entry {
                    name: Name::Static(STATIC_AUTHORITY),
                    value: Box::default(),
                };
                list_bytes += entry.size();
                write_field(&mut out, Indexing::Without, &entry, &mut has_authority);
            }
            Representation::Indexed(index) if index <= STATIC_LAST => {
                list_bytes += static_name_length(index) + 32;
                write_integer(&mut out, INDEXED, 7, index);
            }
            Representation::Indexed(index) => {
                let entry = table.entry(index)?;
                list_bytes += entry.size();
                write_field(&mut out, Indexing::Without, entry, &mut has_authority);
            }
            Representation::Literal {
                indexing,
                name,
                value,
                ..
            } => {
                let entry = table.decode(&name, &value)?;
                list_bytes += entry.size();
                match indexing {
                    Indexing::Incremental => {
                        write_field(&mut out, Indexing::Without, &entry, &mut has_authority);
                        table.insert(entry);
                    }
                    Indexing::Without | Indexing::Never => {
                        write_field(&mut out, indexing, &entry, &mut has_authority);
                    }
                }
            }
        }
        if list_bytes > LIST_BYTES_MAX {
            return Err(Malformed);
        }
    }
    Ok(out)
}

/// Writes a field that is not inserted; the first `:authority` of a block is mended.
fn write_field(out: &mut Vec<u8>, indexing: Indexing, entry: &Entry, has_authority: &mut bool) {
    write_name(out, indexing, &entry.name);
    if *has_authority || !entry.name.is_authority() {
        return write_raw(out, &entry.value);
    }
    *has_authority = true;
    match verdict(&entry.value) {
        Verdict::Valid | Verdict::HasControlCharacter => write_raw(out, &entry.value),
        Verdict::Empty => write_raw(out, STAND_IN),
        Verdict::Forbidden => write_raw(out, &replaced(&entry.value)),
    }
}

/// What to do about an `:authority` that stands at `start` of a block.
fn remedy(authority: &Representation<'_>, start: usize) -> Result<Remedy, Malformed> {
    let mut out = Vec::new();
    let Representation::Literal {
        indexing,
        value_at,
        value,
        ..
    } = authority
    else {
        // The one that needs no value: the static entry, which is empty.
        write_name(&mut out, Indexing::Without, &Name::Static(STATIC_AUTHORITY));
        write_raw(&mut out, STAND_IN);
        return Ok(Remedy::From(start, out));
    };
    let text = value.decode()?;
    match verdict(&text) {
        Verdict::Valid | Verdict::HasControlCharacter => return Ok(Remedy::None),
        Verdict::Empty if *indexing == Indexing::Incremental => {
            return Ok(Remedy::NoneOfThisLength);
        }
        Verdict::Empty => write_raw(&mut out, STAND_IN),
        Verdict::Forbidden => match filler(value, &text) {
            Some(coded) => write_text(
                &mut out,
                &Text {
                    is_huffman: true,
                    bytes: &coded,
                },
            ),
            None => write_raw(&mut out, &replaced(&text)),
        },
    }
    Ok(Remedy::From(*value_at, out))
}

/// Coded text that keeps the encoded length of a coded value as well. There is none when its codes were long ones
/// (controls, bytes above 0x7f); raw, it is shorter.
fn filler(value: &Text<'_>, text: &[u8]) -> Option<Vec<u8>> {
    if !value.is_huffman {
        return None;
    }
    huffman::filler(text.len(), value.bytes.len())
}

fn verdict(value: &[u8]) -> Verdict {
    if value.is_empty() {
        Verdict::Empty
    } else if value.iter().copied().all(is_plain) {
        Verdict::Valid
    } else if value.iter().any(u8::is_ascii_control) {
        Verdict::HasControlCharacter
    } else if Authority::try_from(value).is_ok() {
        Verdict::Valid
    } else {
        Verdict::Forbidden
    }
}

/// A valid value of the same length.
fn replaced(value: &[u8]) -> Vec<u8> {
    value
        .iter()
        .map(|&byte| if is_plain(byte) { byte } else { b'-' })
        .collect()
}

/// Whether the byte may stand anywhere in a registered name, so that a value of such bytes is always valid.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_')
}
