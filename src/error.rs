// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The error type of the library: an errno, a provider code, and words that tell the user what to do.
//!
//! Back-pressure ([`Error::AGAIN`]) is a normal result of the data path, so making and dropping it neither allocates
//! nor formats.

use std::borrow::Cow;
use std::fmt;

/// The result type of all layers below the C interface.
pub type Result<T> = std::result::Result<T, Error>;

/// Errno values that `errno.h` lacks; the numbers are libfabric's.
pub mod errno {
    use parking_lot::Mutex;
    use std::borrow::Cow;
    use std::ffi::{CStr, CString};

    pub const ETOOSMALL: i32 = 257;
    pub const EOPBADSTATE: i32 = 258;
    pub const EAVAIL: i32 = 259;
    pub const EBADFLAGS: i32 = 260;
    pub const ENOEQ: i32 = 261;
    pub const ENOCQ: i32 = 263;
    pub const ETRUNC: i32 = 265;
    pub const ENOKEY: i32 = 266;
    pub const EOVERRUN: i32 = 268;
    pub const ENORX: i32 = 269;
    pub use libc::*;

    /// The words of an errno: the library's own, if it has any, else the C library's.
    pub fn words(err: i32) -> String {
        let own = match err {
            0 => "success",
            ETOOSMALL => "provided buffer is too small",
            EOPBADSTATE => "operation not permitted in current state",
            EAVAIL => "error available: read it with the queue's readerr call",
            EBADFLAGS => "flags not supported",
            ENOEQ => "missing event queue",
            ENOCQ => "missing completion queue",
            ETRUNC => "message truncated",
            ENOKEY => "requested key is not available",
            EOVERRUN => "queue has been overrun",
            ENORX => "receiver not ready: no receive was posted in time",
            _ => return std::io::Error::from_raw_os_error(err).to_string().replace(&format!(" (os error {err})"), ""),
        };
        own.to_string()
    }

    /// Removes the number that `std` puts into the words of a failed system call: "No such file or directory (os error
    /// 2)".
    pub(super) fn without_numbers(mut text: Cow<'static, str>) -> Cow<'static, str> {
        const BEFORE: &str = " (os error ";
        while let Some(at) = text.find(BEFORE) {
            let digits = text[at + BEFORE.len()..].bytes().take_while(u8::is_ascii_digit).count();
            let end = at + BEFORE.len() + digits;
            if digits == 0 || text.as_bytes().get(end) != Some(&b')') {
                return text;
            }
            text = format!("{}{}", &text[..at], &text[end + 1..]).into();
        }
        text
    }

    /// Like `words`, but the result is never freed.
    pub fn static_words(err: i32) -> &'static CStr {
        static WORDS: Mutex<Vec<(i32, &CStr)>> = Mutex::new(Vec::new());
        // Numbers that are no errno share one entry, because the memory of an entry is never freed and has to stay
        // bounded.
        let number = if (0..4096).contains(&err.saturating_abs()) { err.saturating_abs() } else { 4096 };
        let mut all = WORDS.lock();
        if let Some((_, words)) = all.iter().find(|(known, _)| *known == number) {
            return words;
        }
        let kept = Box::leak(CString::new(words(number)).unwrap_or_default().into_boxed_c_str());
        all.push((number, kept));
        kept
    }
}

/// The provider's reason for a failure, beside the errno (`prov_errno` of an error entry).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Code(pub i32);

#[allow(non_upper_case_globals)] // they read as what they are: the variants of an open enumeration
impl Code {
    pub const None: Code = Code(0);
    /// No such key at the peer: stale, foreign or closed.
    pub const Key: Code = Code(1);
    /// The range lies outside the region.
    pub const Bounds: Code = Code(2);
    /// The region lacks the access right.
    pub const Access: Code = Code(3);
    /// No path is both possible and permitted.
    pub const Path: Code = Code(4);
    /// Memory of the operation is not mapped, or was freed after it was registered.
    pub const Fault: Code = Code(5);
    /// The peer closed or died.
    pub const PeerGone: Code = Code(6);
    /// The peer wrote nonsense into shared memory or its socket.
    pub const PeerBroke: Code = Code(7);
    /// The deadline of the operation passed.
    pub const Deadline: Code = Code(8);
    /// The operation was cancelled, or flushed by a local close.
    pub const Canceled: Code = Code(9);
    /// The message is longer than the receive's buffer.
    pub const Trunc: Code = Code(10);
    /// The peer rejected the connection.
    pub const Rejected: Code = Code(11);
    /// The listener has no room for another connection now.
    pub const Busy: Code = Code(12);
    /// The status of a verbs work completion. Drivers may have statuses that this library does not know.
    pub const fn verbs(status: u32) -> Code {
        Code(Code::VERBS.saturating_add(status as i32))
    }
    const VERBS: i32 = 100;
}

impl Code {
    /// Words for a `prov_errno`, which may be any integer.
    pub fn words(raw: i32) -> &'static str {
        match raw {
            0 => "no provider error",
            1 => "the peer has no region with this key: it is stale, foreign, or closed",
            2 => "the range lies outside the peer's region",
            3 => "the peer's region does not permit this access",
            4 => "no path to the peer's region is both possible and permitted",
            5 => "memory was unmapped or freed during a copy",
            6 => "the peer closed the connection or died",
            7 => "the peer wrote invalid data into shared memory or its socket",
            8 => "the operation's deadline passed",
            9 => "cancelled, or flushed by a close or shutdown of this side",
            10 => "the message was longer than the receive",
            11 => "the peer rejected the connection",
            12 => "the listener has no room for another connection now",
            n if n >= Code::VERBS => "a work completion of the RDMA device failed: 100 + its ibv_wc_status",
            _ => "unknown provider error",
        }
    }
}

/// An error: an errno (positive), the provider's code, and words.
#[derive(Clone, Debug)]
pub struct Error {
    pub errno: i32,
    pub code: Code,
    pub words: Cow<'static, str>,
    /// For an operation on many pieces: the index of the first piece that fails, and the number of bytes at the
    /// beginning of that piece that are valid.
    pub piece: Option<(u16, u32)>,
}

const AGAIN_WORDS: &str = "resource temporarily unavailable: read the completion queue and call again";

impl Error {
    /// A queue is full, or empty for a read: the caller has to make progress and call again.
    pub const AGAIN: Error = Error::fixed(errno::EAGAIN, AGAIN_WORDS);

    pub const fn fixed(errno: i32, words: &'static str) -> Self {
        Error { errno, code: Code::None, words: Cow::Borrowed(words), piece: None }
    }

    // The constructors are not inlined, because hundreds of places make errors, none of them hot.
    #[cold]
    #[inline(never)]
    pub fn new(errno: i32, words: impl Into<Cow<'static, str>>) -> Self {
        Error::coded(errno, Code::None, words)
    }

    #[cold]
    #[inline(never)]
    pub fn coded(errno: i32, code: Code, words: impl Into<Cow<'static, str>>) -> Self {
        Error { errno, code, words: errno::without_numbers(words.into()), piece: None }
    }

    /// Invalid argument. The words name it.
    #[cold]
    #[inline(never)]
    pub fn invalid(words: impl Into<Cow<'static, str>>) -> Self {
        Error::new(errno::EINVAL, words)
    }

    /// An error that the other side of an operation reported, of which only the code is known.
    #[cold]
    pub fn reported(code: Code) -> Self {
        let (code, errno) = match code {
            Code::Key => (code, errno::EKEYREJECTED),
            Code::Bounds => (code, errno::ERANGE),
            Code::Access => (code, errno::EACCES),
            Code::Path => (code, errno::EOPNOTSUPP),
            Code::Fault => (code, errno::EFAULT),
            Code::Deadline => (code, errno::ETIMEDOUT),
            Code::Canceled => (code, errno::ECANCELED),
            Code::Trunc => (code, errno::ETRUNC),
            _ => (Code::PeerBroke, errno::EPROTO),
        };
        Error::coded(errno, code, format!("the peer reports: {}", Code::words(code.0)))
    }

    /// A deadline passed on a path that needs the target's progress.
    #[cold]
    pub fn late(what: &str) -> Self {
        let words = "its path needs progress of the target: let it read or wait on a queue, or open its domain with GDRFAB_PROGRESS_AUTO";
        Error::coded(errno::ETIMEDOUT, Code::Deadline, format!("{what} before its deadline; {words}"))
    }

    /// A system call failed. `doing` is its purpose.
    pub fn os(doing: impl fmt::Display, e: rustix::io::Errno) -> Self {
        let n = e.raw_os_error();
        Error::new(n, format!("{doing}: {}", errno::words(n)))
    }

    /// The same error, with the purpose of the caller (`doing`) before the words.
    #[cold]
    #[inline(never)]
    pub fn context(mut self, doing: impl fmt::Display) -> Self {
        self.words = errno::without_numbers(format!("{doing}: {}", self.words).into());
        self
    }

    /// True if the error means that the other end of a socket is gone.
    pub fn is_of_gone_peer(&self) -> bool {
        self.code == Code::PeerGone || matches!(self.errno, errno::EPIPE | errno::ECONNRESET | errno::ENOTCONN)
    }

    pub fn is_again(&self) -> bool {
        self.errno == errno::EAGAIN
    }

    /// True if this is [`Error::AGAIN`], and not the EAGAIN of a system call.
    pub fn is_back_pressure(&self) -> bool {
        self.is_again() && matches!(self.words, Cow::Borrowed(words) if words == AGAIN_WORDS)
    }

    /// True if a resource was lacking that may be available later, such as descriptors or memory.
    pub fn is_shortage(&self) -> bool {
        matches!(self.errno, errno::EMFILE | errno::ENFILE | errno::ENOMEM | errno::ENOBUFS | errno::EAGAIN)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let general = errno::words(self.errno);
        if self.words.contains(&general) { f.write_str(&self.words) } else { write!(f, "{} ({general})", self.words) }
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_an_errno_are_said_once_and_without_its_number() {
        let io = || std::io::Error::from_raw_os_error(libc::ENOENT);
        let os = Error::os("opening", rustix::io::Errno::NOENT);
        let all = [
            Error::fixed(errno::ENOENT, "no such thing"),
            Error::new(errno::ENOENT, format!("opening: {}", io())),
            Error::new(errno::ENOENT, format!("either {} or {}; neither", io(), io())),
            Error::coded(errno::ENOENT, Code::Path, format!("opening: {}", io())),
            Error::invalid(format!("name: {}", io())),
            Error::reported(Code::Fault),
            os.clone(),
            os.context("registering"),
            Error::new(errno::ENOENT, "told by another").context(io()),
            Error::new(errno::ENODATA, "no provider fits: a: it lacks it (No data available)"),
        ];
        for e in all {
            let (text, general) = (e.to_string(), errno::words(e.errno));
            assert!(!text.contains("os error") && text.contains(&general), "{text}");
            assert!(text.matches(&general).count() == 1 || text.contains("either"), "{text}");
        }
        for odd in ["an (os error ", "(os error x)", " (os error 2", " (os error )"] {
            assert_eq!(errno::without_numbers(odd.into()), odd);
        }
    }

    #[test]
    fn a_failed_system_call_is_no_back_pressure() {
        assert!(Error::AGAIN.is_back_pressure() && !Error::os("starting a thread", rustix::io::Errno::AGAIN).is_back_pressure());
    }
}
