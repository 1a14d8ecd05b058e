// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The packets on the socket between a process and its copier (`gdrfab-copier`): one packet for a request, one for the
//! answer.

use crate::error::{Error, Result, errno};
use crate::hmem::{DeviceId, HANDLE_BYTES, Iface};

/// Identifies the build. Two programs of different builds do not talk to each other.
pub const HELLO: &str = concat!("gdrfab-copier 2 of ", env!("CARGO_PKG_VERSION"));

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum RequestKind {
    /// Opens a device for copies. The answer carries no data.
    Open = 1,
    /// Maps the allocation given by `handle`, `how`, `len` and the descriptor. The answer has its number, address,
    /// length and device.
    Map = 2,
    /// Unmaps allocation `number` once the copies posted so far are over. There is no answer.
    Unmap = 3,
    /// Begins stream `number` on `device`. The descriptor is the stream's shared ring.
    Stream = 4,
    /// Asks why stream `number` failed.
    Failure = 5,
}

impl RequestKind {
    fn from_raw(raw: u32) -> Option<RequestKind> {
        [RequestKind::Open, RequestKind::Map, RequestKind::Unmap, RequestKind::Stream, RequestKind::Failure]
            .into_iter()
            .find(|w| *w as u32 == raw)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub what: RequestKind,
    pub iface: Iface,
    /// For `Map` the device that the memory is on, else the device that copies.
    pub device: DeviceId,
    /// For `Map` the device that copies.
    pub copying_device: Option<DeviceId>,
    pub number: u64,
    pub how: u32,
    pub len: u64,
    pub handle: [u8; HANDLE_BYTES],
}

pub const REQUEST_BYTES: usize = 12 + 4 + 16 + 16 + 8 + 8 + HANDLE_BYTES;

impl Request {
    pub fn new(what: RequestKind, iface: Iface, device: DeviceId) -> Request {
        Request { what, iface, device, copying_device: None, number: 0, how: 0, len: 0, handle: [0; HANDLE_BYTES] }
    }

    pub fn of(what: RequestKind, number: u64) -> Request {
        Request { number, ..Request::new(what, Iface::System, DeviceId::default()) }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(REQUEST_BYTES);
        for word in [self.what as u32, self.iface as u32, self.how, u32::from(self.copying_device.is_some())] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(self.device);
        bytes.extend(self.copying_device.unwrap_or_default());
        bytes.extend(self.number.to_ne_bytes());
        bytes.extend(self.len.to_ne_bytes());
        bytes.extend(self.handle);
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Result<Request> {
        let mut read = Reader(bytes);
        let (what, iface, how, has_copying_device) = (read.u32()?, read.u32()?, read.u32()?, read.u32()?);
        let (device, copying_device) = (read.array()?, read.array()?);
        let (number, len, handle) = (read.u64()?, read.u64()?, read.array()?);
        let (Some(what), Some(iface), true) = (RequestKind::from_raw(what), Iface::from_raw(iface), read.0.is_empty()) else {
            return Err(malformed());
        };
        Ok(Request { what, iface, device, copying_device: (has_copying_device != 0).then_some(copying_device), number, how, len, handle })
    }
}

/// The data of an answer that reports success.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    pub number: u64,
    pub base: u64,
    pub len: u64,
    pub device: DeviceId,
    /// For `Failure`: errno and words of the stream's error. The request itself succeeded.
    pub errno: i32,
    pub words: String,
}

/// Bytes of an error's words in an answer; the rest is cut off.
const WORDS: usize = 1024;
pub const ANSWER_BYTES: usize = 8 + 24 + 16 + WORDS;

pub fn encode_answer(answer: &Result<Answer>) -> Vec<u8> {
    let (refused, answer) = match answer {
        Ok(answer) => (0, answer.clone()),
        Err(e) => (e.errno, Answer { words: e.words.to_string(), ..Answer::default() }),
    };
    let mut bytes = Vec::with_capacity(ANSWER_BYTES);
    bytes.extend(refused.to_ne_bytes());
    bytes.extend(answer.errno.to_ne_bytes());
    for word in [answer.number, answer.base, answer.len] {
        bytes.extend(word.to_ne_bytes());
    }
    bytes.extend(answer.device);
    bytes.extend(answer.words.bytes().take(WORDS));
    bytes
}

pub fn decode_answer(bytes: &[u8]) -> Result<Answer> {
    let mut read = Reader(bytes);
    let (refused, errno) = (read.u32()? as i32, read.u32()? as i32);
    let (number, base, len, device) = (read.u64()?, read.u64()?, read.u64()?, read.array()?);
    let words = String::from_utf8_lossy(read.0).into_owned();
    if refused != 0 {
        return Err(Error::new(refused, words));
    }
    Ok(Answer { number, base, len, device, errno, words })
}

fn malformed() -> Error {
    Error::fixed(errno::EPROTO, "an invalid packet between the library and gdrfab-copier")
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk().ok_or_else(malformed)?;
        self.0 = rest;
        Ok(*head)
    }

    fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_ne_bytes)
    }

    fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_ne_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood() {
        let request = Request {
            copying_device: Some([3; 16]),
            number: 7,
            how: 2,
            len: 1 << 40,
            handle: [9; HANDLE_BYTES],
            ..Request::new(RequestKind::Map, Iface::Cuda, [1; 16])
        };
        assert_eq!(request.encode().len(), REQUEST_BYTES);
        assert_eq!(Request::decode(&request.encode()).unwrap(), request);
        assert!(Request::decode(&request.encode()[1..]).is_err());
        assert!(Request::decode(&[request.encode(), vec![0]].concat()).is_err());
        let answer = Answer { number: 1, base: 2, len: 3, device: [4; 16], errno: 5, words: "why".into() };
        assert_eq!(decode_answer(&encode_answer(&Ok(answer.clone()))).unwrap(), answer);
        let e = decode_answer(&encode_answer(&Err(Error::new(errno::ENOMEM, "full")))).unwrap_err();
        assert_eq!((e.errno, &*e.words), (errno::ENOMEM, "full"));
        assert!(decode_answer(&[0; 20]).is_err());
    }
}
