// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The arguments of an operation, as the API's layers hand them to a provider.

use crate::error::{Error, Result, errno};
use crate::mr::DEVICE_DESC;
use crate::mr::piece::PieceEnds;
pub use crate::mr::{Iov, parts};
use std::sync::Arc;

/// A piece of a peer's region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct RmaIov {
    pub addr: u64,
    pub len: usize,
    pub key: u64,
}

/// The most pieces of an operation on either side.
pub const IOV_LIMIT: usize = 8;

/// The direction of an RMA operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dir {
    Write,
    Read,
}

/// The arguments that all operations have.
#[derive(Clone, Copy, Debug, Default)]
pub struct Common {
    pub context: usize,
    pub flags: u64,
    pub data: u64,
    /// The descriptor of the local region; 0 if the caller gave none.
    pub desc: u64,
    /// The time limit, from now on; 0: the endpoint's.
    pub timeout_ns: u64,
    /// The peer's index in the address vector; for a receive, `av::UNSPEC` means any peer. A connected endpoint ignores it.
    pub peer: u64,
}

/// An RMA operation of one piece on each side, or a message of one piece.
#[derive(Clone, Copy)]
pub struct One {
    pub local: Iov,
    pub addr: u64,
    pub key: u64,
    pub desc: u64,
    pub context: usize,
    /// For a message, the data for the peer's completion.
    pub data: u64,
}

impl One {
    /// True if the local piece lies in host memory: its descriptor says so, or there is none.
    #[inline(always)]
    pub fn is_on_host(&self) -> bool {
        self.desc & DEVICE_DESC == 0
    }
}

/// For providers that take one descriptor per operation: gives the operation the first descriptor, and refuses pieces of
/// which some lie in host and some in device memory.
#[inline]
pub fn one_kind(common: &Common, descs: &[u64]) -> Result<Common> {
    let first = descs.first().copied().unwrap_or(0);
    match descs.iter().position(|d| (d ^ first) & DEVICE_DESC != 0) {
        None => Ok(Common { desc: first, ..*common }),
        Some(i) => Err(Error::invalid(format!("desc[{i}]: host and device memory cannot be pieces of one operation"))),
    }
}

/// The sum of the lengths; `None` if it overflows.
pub fn total(iov: &[Iov]) -> Option<usize> {
    iov.iter().try_fold(0usize, |sum, v| sum.checked_add(v.len()))
}

/// Checks the local pieces of an operation of at most `max` bytes, and returns the sum of their lengths.
pub fn measure(iov: &[Iov], max: usize) -> Result<usize> {
    if iov.len() > IOV_LIMIT {
        return Err(Error::invalid(format!("iov_count: {} pieces, the limit is {IOV_LIMIT}", iov.len())));
    }
    for (i, v) in iov.iter().enumerate() {
        if v.is_missing() {
            return Err(Error::invalid(format!("iov[{i}]: the address is NULL but the length is {}", v.len())));
        }
    }
    match total(iov) {
        Some(n) if n <= max => Ok(n),
        _ => Err(Error::new(errno::EMSGSIZE, format!("len: more than the {max} bytes of max_msg_size"))),
    }
}

/// The pieces of an operation. The usual single piece takes no allocation.
#[derive(Clone, Debug)]
pub enum Pieces {
    One(Iov),
    /// Up to [`IOV_LIMIT`].
    Many(Box<[Iov]>),
    /// The pieces of a list of blocks.
    List(Arc<(Box<[Iov]>, PieceEnds)>),
}

impl Pieces {
    /// `None` if there are more than [`IOV_LIMIT`].
    #[inline]
    pub fn from(iov: &[Iov]) -> Option<Pieces> {
        match iov {
            [one] => Some(Pieces::One(*one)),
            many if many.len() <= IOV_LIMIT => Some(Pieces::Many(many.into())),
            _ => None,
        }
    }

    pub fn of_list(list: Vec<Iov>) -> Pieces {
        let ends = PieceEnds::of(&list);
        Pieces::List(Arc::new((list.into(), ends)))
    }

    pub fn is_list(&self) -> bool {
        matches!(self, Pieces::List(_))
    }

    #[inline]
    pub fn as_slice(&self) -> &[Iov] {
        match self {
            Pieces::One(one) => std::slice::from_ref(one),
            Pieces::Many(many) => many,
            Pieces::List(list) => &list.0,
        }
    }

    /// The parts of the pieces that hold `len` bytes from byte `skip` on.
    #[inline]
    pub fn parts(&self, skip: usize, len: usize) -> impl Iterator<Item = Iov> + '_ {
        let (first, skip) = if let Pieces::List(list) = self { list.1.find(skip) } else { (0, skip) };
        parts(self.as_slice().get(first..).unwrap_or(&[]), skip, len)
    }

    #[inline]
    pub fn first(&self) -> usize {
        self.as_slice().first().map_or(0, |v| v.addr())
    }
}
