// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A body that is being sent: the memory of its bytes, and its progress. A body can end early without breaking the
//! framing: the part that has begun is completed, and a status word says that the rest does not follow.

use super::stripes::SentStripes;
use crate::error::{Code, Error, errno};
use crate::prov::bind::Ending;
use crate::prov::op::Iov;
use crate::prov::tcp::memory::source::{BodySource, GatherCall, gather, leave};
use crate::prov::tcp::memory::staging::StagingLanes;
use crate::prov::tcp::wire::frame::{PART, PARTS, STRIPE_HEAD, STRIPED, WHOLE_MAX, WirePosition, status_of, wire_len, wire_position};

/// The status word of a part that is good.
static NO_WORD: [u8; 8] = [0; 8];
/// Bytes that are sent where the framing demands bytes and the memory may not be read.
static ZEROS: [u8; 8192] = [0; 8192];

/// The operation that a body belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A WRITE, by its sequence.
    Write(u32),
    /// A SEND or TAKEN. The number, if the operation completes only when the receiver confirms it.
    Send(Option<u64>),
    /// An answer to a READ of the peer; `list`: the READ was of a list.
    Answer { list: bool },
}

/// A body that is being sent.
pub struct Body {
    pub source: BodySource,
    pub owner: Owner,
    /// The operation that completes when the last byte is out.
    pub end: Option<Ending>,
    pub len: u64,
    in_parts: bool,
    /// The body goes over further streams in stripes; the first stream carries only the words that end it.
    pub stripes: Option<Box<SentStripes>>,
    /// Number of the body's wire bytes that have left, status words included.
    at: u64,
    /// For a body that was given up: wire position of the last status word.
    cut: Option<u64>,
    /// For a body that was given up: the last status word.
    word: [u8; 8],
    /// The reason for which the body was given up, for the operation's completion.
    pub why: Option<Error>,
}

impl Body {
    pub fn new(source: BodySource, owner: Owner, end: Option<Ending>, len: u64) -> Body {
        // Device memory and regions can become unreadable in the middle, so their bodies need status words.
        let in_parts = len > WHOLE_MAX || matches!(source, BodySource::Device(_) | BodySource::Regions(_));
        Body { source, owner, end, len, in_parts, stripes: None, at: 0, cut: None, word: NO_WORD, why: None }
    }

    /// The header's flag for the way in which the body is cut.
    pub fn flag(&self) -> u8 {
        match (&self.stripes, self.in_parts) {
            (Some(_), _) => STRIPED,
            (None, true) => PARTS,
            (None, false) => 0,
        }
    }

    /// Sends the body in these stripes.
    pub fn cut_up(&mut self, stripes: SentStripes) {
        self.in_parts = false;
        self.stripes = Some(Box::new(stripes));
    }

    /// Number of wire bytes that the body has on the first stream.
    fn wire_end(&self) -> u64 {
        if self.stripes.is_some() {
            return STRIPE_HEAD as u64;
        }
        self.cut.map_or(wire_len(self.len, self.in_parts), |cut| cut + 8)
    }

    /// True if the last byte has left.
    pub fn is_over(&self) -> bool {
        self.at >= self.wire_end()
    }

    /// Number of wire bytes that have not left.
    pub fn rest(&self) -> u64 {
        self.wire_end().saturating_sub(self.at)
    }

    /// True if the body is neither in parts nor in stripes, so that nothing can cut it short.
    pub fn is_whole(&self) -> bool {
        !self.in_parts && self.stripes.is_none()
    }

    /// True if the body was given up.
    pub fn is_cut(&self) -> bool {
        self.why.is_some()
    }

    /// The first byte of the body at or behind wire position `at`.
    fn byte_at(&self, at: u64) -> u64 {
        match wire_position(at, self.len, self.in_parts) {
            WirePosition::Byte(byte, _) => byte,
            WirePosition::Word(k) if (at - u64::from(k)).is_multiple_of(PART + 8) => (at / (PART + 8) * PART).min(self.len),
            _ => self.len,
        }
    }

    /// Advances by up to `n` bytes that have left; returns the number of those that were this body's.
    pub fn advance(&mut self, n: u64, lanes: &mut StagingLanes) -> u64 {
        let taken = n.min(self.wire_end() - self.at);
        self.at += taken;
        if self.stripes.is_some() {
            return taken;
        }
        let byte = self.byte_at(self.at);
        if let BodySource::Device(device_source) = &mut self.source {
            device_source.release(lanes, byte);
        }
        taken
    }

    /// Gives the body up: completes the part that has begun, and ends with a status word. The rest of the part has its
    /// real bytes if `keep` permits a copy, otherwise zeros. The body's memory is not touched afterwards.
    pub fn give_up(&mut self, lanes: &mut StagingLanes, why: Error, keep: bool) {
        if self.is_cut() || self.is_over() {
            return;
        }
        if let Some(stripes) = &mut self.stripes {
            stripes.give_up(&self.source, self.len, &why, keep);
            if !matches!(self.source, BodySource::Owned(..)) {
                self.source = BodySource::Nothing;
            }
            self.why = Some(why);
            return;
        }
        let wire_position = wire_position(self.at, self.len, self.in_parts);
        // The bytes that the framing demands: the rest of the word, and the rest of the part behind the word.
        let (rest, first, run) = match wire_position {
            WirePosition::Byte(at, run) => (0, at, run),
            WirePosition::Word(k) if k > 0 => (8 - u64::from(k), self.byte_at(self.at), (self.len - self.byte_at(self.at)).min(PART)),
            _ => (0, 0, 0),
        };
        let cut = self.at + rest + run;
        if self.in_parts && cut < wire_len(self.len, true) {
            self.cut = Some(cut);
            self.word = status_of(why.code).to_le_bytes();
        }
        let (first, run) = if self.in_parts { (first, run) } else { (self.at, self.len - self.at) };
        self.source = match std::mem::replace(&mut self.source, BodySource::Nothing) {
            BodySource::Pieces(pieces) if keep && run > 0 => BodySource::Owned(gather(pieces.as_slice(), first, run), first),
            BodySource::Device(mut device_source) => {
                let saved = device_source.find(lanes, first).filter(|slot| keep && run > 0 && slot.len() as u64 >= run);
                let saved = saved.map(|slot| gather(&[slot], 0, run));
                device_source.end(lanes);
                saved.map_or(BodySource::Nothing, |bytes| BodySource::Owned(bytes, first))
            }
            owned @ BodySource::Owned(..) => owned,
            _ => BodySource::Nothing,
        };
        self.why = Some(why);
    }

    /// Enters the regions that the kernel is about to read, so that they cannot close meanwhile. If a region is closed
    /// already, the body is given up.
    pub fn enter(&mut self, call: &mut GatherCall<'_>, lanes: &mut StagingLanes) {
        let BodySource::Regions(runs) = &self.source else { return };
        let before = call.entered.len();
        let mut shut = None;
        for region in runs.regions() {
            let entered = region.enter().and_then(|()| {
                region.begin_cpu(false).map_err(|_| {
                    region.leave();
                    Code::Fault
                })
            });
            match entered {
                Ok(()) => call.entered.push(region.clone()),
                Err(code) => {
                    shut = Some(code);
                    break;
                }
            }
        }
        if let Some(code) = shut {
            call.entered.drain(before..).for_each(|r| leave(&r));
            self.give_up(lanes, Error::coded(errno::EKEYREJECTED, code, "the region was closed while a peer read it"), false);
        }
    }

    /// Adds the pieces that can be sent now; true: the whole rest of the body was added.
    pub fn collect(&mut self, call: &mut GatherCall<'_>, lanes: &mut StagingLanes) -> bool {
        if let Some(stripes) = &self.stripes {
            let rest = stripes.end_words().and_then(|words| words.get(self.at as usize..)).unwrap_or(&[]);
            // SAFETY: the body is neither changed nor dropped before the call that uses the pieces is over.
            return !rest.is_empty() && unsafe { call.add_own(rest) } == rest.len();
        }
        self.enter(call, lanes);
        let (mut at, end) = (self.at, self.wire_end());
        while at < end {
            if call.is_full() {
                return false;
            }
            if let Some(cut) = self.cut.filter(|cut| at >= *cut) {
                let word = &self.word[(at - cut) as usize..];
                // SAFETY: the body is neither changed nor dropped before the call that uses the pieces is over.
                at += unsafe { call.add_own(word) } as u64;
                continue;
            }
            let n = match wire_position(at, self.len, self.in_parts) {
                WirePosition::Word(k) => {
                    let next = self.byte_at(at);
                    if k == 0 && next < self.len && !self.is_there(next, lanes) {
                        return false;
                    }
                    let word = &NO_WORD[usize::from(k)..];
                    // SAFETY: `NO_WORD` is a constant.
                    unsafe { call.add_own(word) }
                }
                WirePosition::Byte(byte, run) => self.add_bytes(call, lanes, byte, run),
                WirePosition::End => return true,
            };
            if n == 0 {
                return false;
            }
            at += n as u64;
        }
        true
    }

    /// True if the byte can be sent now. False: the device's copy is not done.
    fn is_there(&self, byte: u64, lanes: &mut StagingLanes) -> bool {
        match &self.source {
            BodySource::Device(device_source) => device_source.find(lanes, byte).is_some(),
            _ => true,
        }
    }

    /// Adds the memory of up to `run` bytes, which begin at `byte`; returns the number of bytes added.
    pub fn add_bytes(&self, call: &mut GatherCall<'_>, lanes: &mut StagingLanes, byte: u64, run: u64) -> usize {
        let mut n = 0;
        match &self.source {
            BodySource::Pieces(pieces) => n = add_all(pieces.parts(byte as usize, run as usize), call),
            BodySource::Owned(bytes, first) => {
                let rest = bytes.get((byte - first) as usize..).unwrap_or(&[]);
                // SAFETY: the body is neither changed nor dropped before the call that uses the pieces is over.
                n = unsafe { call.add_own(&rest[..rest.len().min(run as usize)]) };
            }
            BodySource::Regions(runs) => {
                for (r, from, len) in runs.walk(byte as usize, run as usize) {
                    n += add_all(r.region.parts(r.skip + from as u64, len as u64), call);
                    if call.is_full() {
                        break;
                    }
                }
            }
            BodySource::Device(device_source) => {
                if let Some(slot) = device_source.find(lanes, byte) {
                    n = call.add(slot.part(0, run as usize));
                }
            }
            // SAFETY: `ZEROS` is a constant.
            BodySource::Nothing => n = unsafe { call.add_own(&ZEROS[..ZEROS.len().min(run as usize)]) },
        }
        n
    }
}

/// Adds pieces until the call is full; returns the number of bytes added.
fn add_all(parts: impl Iterator<Item = Iov>, call: &mut GatherCall<'_>) -> usize {
    let mut n = 0;
    for part in parts {
        n += call.add(part);
        if call.is_full() {
            break;
        }
    }
    n
}
