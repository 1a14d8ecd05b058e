// SPDX-License-Identifier: Apache-2.0 OR MIT
//! libnrt: its functions, its status codes, and its answers about memory that others allocated.

use crate::error::{Error, Result, errno};
use crate::sys::dl::{Library, entry_points};
use crate::sys::mem;
use parking_lot::Mutex;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

entry_points! {
    /// Functions of libnrt: `NRT_STATUS` is an int, `nrt_tensor_t` opaque.
    pub struct Nrt {
        #[hold_standard]
        fn nrt_get_total_nc_count(count: *mut u32) -> c_int;
        #[hold_standard]
        fn nrt_get_visible_nc_count(count: *mut u32) -> c_int;
        fn nrt_get_status_as_str(status: c_int) -> *const c_char;
        fn nrt_tensor_allocate_empty(name: *const c_char, tensor: *mut *mut c_void) -> c_int;
        #[hold_standard]
        fn nrt_tensor_allocate(placement: c_int, core: c_int, size: usize, name: *const c_char, tensor: *mut *mut c_void) -> c_int;
        fn nrt_tensor_free(tensor: *mut *mut c_void) -> ();
        fn nrt_tensor_get_va(tensor: *const c_void) -> *mut c_void;
        fn nrt_tensor_read(tensor: *const c_void, buf: *mut c_void, offset: usize, size: usize) -> c_int;
        fn nrt_tensor_write(tensor: *mut c_void, buf: *const c_void, offset: usize, size: usize) -> c_int;
        fn nrt_memcpy_to_device(dest: *mut c_void, src: *const c_void, size: usize) -> c_int;
        #[hold_standard]
        fn nrt_get_hbm_mmap_va(device: c_int, hbm: c_int, addr: *mut *mut c_void, size: *mut usize) -> c_int;
        #[hold_standard]
        fn nrt_get_dmabuf_fd(va: u64, size: u64, fd: *mut c_int) -> c_int;
        #[hold_standard]
        fn nrt_get_dmabuf_fd_v2(va: u64, size: u64, fd: *mut c_int, offset: *mut u64) -> c_int;
    }
}

pub const PLACEMENT_DEVICE: c_int = 0;
const NRT_INVALID: c_int = 2;
const NRT_INVALID_HANDLE: c_int = 3;
const NRT_RESOURCE: c_int = 4;
const NRT_TIMEOUT: c_int = 5;
const NRT_QUEUE_FULL: c_int = 7;
const NRT_UNINITIALIZED: c_int = 13;
const NRT_CLOSED: c_int = 14;
const NRT_EXEC_NC_BUSY: c_int = 1005;

/// Bytes of one step through a pipe, which any pipe has room for.
const PIPE_PIECE: usize = 4096;
/// Number of pages after which the search for the end of foreign memory stops.
const MOST_PAGES: u64 = 1 << 28;

#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Range {
    pub base: u64,
    pub len: u64,
}

impl Range {
    pub fn holds(&self, addr: u64, len: u64) -> bool {
        addr.checked_sub(self.base).and_then(|at| at.checked_add(len)).is_some_and(|end| end <= self.len)
    }
}

/// Device memory that the runtime has mapped in this process.
struct Hbm {
    device: c_int,
    index: c_int,
    range: Range,
}

pub struct Runtime {
    pub nrt: Nrt,
    /// Cores that this process may use.
    pub cores: u32,
    hbm: Mutex<Vec<Hbm>>,
    /// Foreign memory that was found by exporting dma-bufs.
    probed: Mutex<Vec<Range>>,
}

impl Runtime {
    pub fn open(adopt: bool) -> Result<Runtime> {
        let nrt = Nrt::load(Library::open(&["libnrt.so.1", "libnrt.so"], adopt)?);
        let (mut total, mut visible) = (0, 0);
        // SAFETY: may be called before nrt_init; writes one number.
        let status = unsafe { nrt.nrt_get_total_nc_count(&mut total)? };
        if status != 0 || total == 0 {
            return Err(Error::new(
                errno::ENODEV,
                format!("no Neuron core: nrt_get_total_nc_count returned status {status}, count {total}"),
            ));
        }
        // SAFETY: may be called before nrt_init; writes one number.
        let limited = unsafe { nrt.nrt_get_visible_nc_count(&mut visible) }.is_ok_and(|status| status == 0 && visible > 0);
        let cores = if limited { visible.min(total) } else { total }.min(4096);
        let up = Runtime { nrt, cores, hbm: Mutex::default(), probed: Mutex::default() };
        if adopt {
            up.running()?;
        }
        Ok(up)
    }

    /// The reason why memory cannot be exported as a dma-buf, if there is one.
    pub fn lacks_dmabuf(&self) -> Option<Error> {
        const NAMES: [&str; 2] = ["nrt_get_dmabuf_fd_v2", "nrt_get_dmabuf_fd"];
        NAMES.iter().all(|name| !self.nrt.has(name)).then(|| Library::lacks(self.nrt.library(), NAMES[1]))
    }

    /// The memory around `addr` that others allocated, as far as the runtime can tell; `None` if it is not Neuron's.
    pub fn foreign(&self, addr: u64) -> Option<Range> {
        self.mapped(addr).unwrap_or_else(|| self.exportable(addr))
    }

    fn words(&self, what: &str, status: c_int) -> String {
        // SAFETY: takes any number.
        let name = unsafe { self.nrt.nrt_get_status_as_str(status) }.ok().filter(|name| !name.is_null());
        // SAFETY: the runtime's constant text.
        let name = name.map(|name| unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()).unwrap_or_default();
        let remedy = match status {
            NRT_UNINITIALIZED | NRT_CLOSED => ": the application must call nrt_init; gdrfab does not",
            _ => "",
        };
        if name.is_empty() { format!("{what}: {status}{remedy}") } else { format!("{what}: {status} ({name}){remedy}") }
    }

    pub fn check(&self, what: &str, status: c_int) -> Result<()> {
        let errno = match status {
            0 => return Ok(()),
            NRT_INVALID | NRT_INVALID_HANDLE => errno::EINVAL,
            NRT_RESOURCE => errno::ENOMEM,
            NRT_TIMEOUT => errno::ETIMEDOUT,
            NRT_QUEUE_FULL | NRT_EXEC_NC_BUSY => errno::EBUSY,
            NRT_UNINITIALIZED | NRT_CLOSED => errno::ENODEV,
            _ => errno::EIO,
        };
        Err(Error::new(errno, self.words(what, status)))
    }

    /// Fails if the application has not initialised the runtime; a call without other effects finds this out.
    fn running(&self) -> Result<()> {
        let mut tensor = std::ptr::null_mut();
        // SAFETY: a name is optional; `tensor` is written on success only, and freed.
        let status = unsafe {
            let status = self.nrt.nrt_tensor_allocate_empty(std::ptr::null(), &mut tensor)?;
            if status == 0 && !tensor.is_null() {
                self.nrt.nrt_tensor_free(&mut tensor)?;
            }
            status
        };
        self.check("nrt_tensor_allocate_empty", status).map_err(|e| Error::new(errno::ENODEV, e.words))
    }

    fn ask_hbm(&self, device: c_int, index: c_int) -> Result<Range> {
        let (mut addr, mut len) = (std::ptr::null_mut(), 0);
        // SAFETY: two results are written.
        let status = unsafe { self.nrt.nrt_get_hbm_mmap_va(device, index, &mut addr, &mut len)? };
        self.check("nrt_get_hbm_mmap_va", status)?;
        Ok(Range { base: addr as u64, len: len as u64 })
    }

    /// The mapped memory that `addr` lies in. Inner `None`: `addr` lies in no mapped memory. Outer `None`: the runtime
    /// cannot tell.
    fn mapped(&self, addr: u64) -> Option<Option<Range>> {
        if !self.nrt.has("nrt_get_hbm_mmap_va") {
            return None;
        }
        let mut known = self.hbm.lock();
        if let Some(hbm) = known.iter().find(|h| h.range.holds(addr, 1)) {
            // The application may have closed the runtime, or initialised it again.
            if self.ask_hbm(hbm.device, hbm.index).is_ok_and(|now| now == hbm.range) {
                return Some(Some(hbm.range));
            }
            known.clear();
        }
        if known.is_empty() {
            // There are no more devices than cores.
            for device in 0..self.cores as c_int {
                let indexes = (0..64).map_while(|index| Some(Hbm { device, index, range: self.ask_hbm(device, index).ok()? }));
                known.extend(indexes.filter(|h| h.range.base != 0 && h.range.len != 0));
            }
        }
        if known.is_empty() { None } else { Some(known.iter().map(|h| h.range).find(|r| r.holds(addr, 1))) }
    }

    /// The largest range of memory that begins with the page of `addr` and can be exported, or an exported range that
    /// was found before and holds `addr`.
    fn exportable(&self, addr: u64) -> Option<Range> {
        let mut known = self.probed.lock();
        if let Some(i) = known.iter().position(|r| r.holds(addr, 1)) {
            let range = known.swap_remove(i);
            if self.dmabuf_fd(range.base, range.len).is_ok() {
                known.push(range);
                return Some(range);
            }
        }
        let page = mem::page_size() as u64;
        let base = addr & !(page - 1);
        let fits = |pages: u64| base.checked_add(pages * page).is_some() && self.dmabuf_fd(base, pages * page).is_ok();
        if !fits(1) {
            return None;
        }
        let (mut good, mut bad) = (1, 2);
        while bad < MOST_PAGES && fits(bad) {
            (good, bad) = (bad, bad * 2);
        }
        while bad - good > 1 {
            let middle = good + (bad - good) / 2;
            *if fits(middle) { &mut good } else { &mut bad } = middle;
        }
        if known.len() >= 64 {
            known.remove(0);
        }
        let range = Range { base, len: good * page };
        known.push(range);
        Some(range)
    }

    /// A dma-buf of whole pages, and the offset at which they begin.
    pub fn dmabuf_fd(&self, va: u64, size: u64) -> Result<(OwnedFd, u64)> {
        let (mut fd, mut offset) = (-1, 0);
        // SAFETY: any range may be asked for; the results are written on success.
        let (what, status) = unsafe {
            if self.nrt.has("nrt_get_dmabuf_fd_v2") {
                ("nrt_get_dmabuf_fd_v2", self.nrt.nrt_get_dmabuf_fd_v2(va, size, &mut fd, &mut offset)?)
            } else {
                ("nrt_get_dmabuf_fd", self.nrt.nrt_get_dmabuf_fd(va, size, &mut fd)?)
            }
        };
        match status {
            // SAFETY: the runtime made the descriptor for the caller to close.
            0 if fd >= 0 => Ok((unsafe { OwnedFd::from_raw_fd(fd) }, offset)),
            0 => Err(Error::new(errno::EIO, format!("{what}: success, but descriptor {fd}"))),
            NRT_RESOURCE => Err(Error::new(errno::EINVAL, self.words(what, status))),
            _ => Err(Error::new(errno::EOPNOTSUPP, self.words(what, status))),
        }
    }
}

/// Reads mapped device memory through the kernel, which returns an error if the memory is not there.
///
/// # Safety
/// `to` is writable for `len` bytes.
pub unsafe fn read_by_kernel(from: u64, to: u64, len: usize) -> Result<()> {
    let failed = || {
        let e = std::io::Error::last_os_error().raw_os_error().unwrap_or(errno::EIO);
        Error::new(e, format!("reading the mapped memory: {}", errno::words(e)))
    };
    let (out, into) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(|e| Error::os("opening a pipe", e))?;
    let mut done = 0;
    while done < len {
        let piece = (len - done).min(PIPE_PIECE);
        // SAFETY: the kernel checks the source; the pipe is empty, so this does not block.
        let put = unsafe { libc::write(into.as_raw_fd(), (from + done as u64) as *const c_void, piece) };
        if put <= 0 {
            return Err(failed());
        }
        // SAFETY: put <= piece bytes are in the pipe, and the caller's buffer has as many at `done`.
        let got = unsafe { libc::read(out.as_raw_fd(), (to + done as u64) as *mut c_void, put as usize) };
        if got != put {
            return Err(failed());
        }
        done += got as usize;
    }
    Ok(())
}
