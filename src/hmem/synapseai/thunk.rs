// SPDX-License-Identifier: Apache-2.0 OR MIT
//! libhl-thunk, the library directly above the kernel driver: dma-bufs of any device memory, and memory of this
//! library's own if the application does not use SynapseAI.

use crate::error::{Error, Result, errno};
use crate::hmem::{DmaBuf, dmabuf};
use crate::sys::dl::{Library, entry_points};
use parking_lot::Mutex;
use std::ffi::{CStr, c_char, c_int};
use std::os::fd::{FromRawFd, OwnedFd};

entry_points! {
    /// Functions of libhl-thunk. The result is 0, a descriptor, or a negative errno; handles and addresses are 0 on
    /// failure.
    pub struct HlThunk {
        #[hold_standard]
        fn hlthunk_get_device_count(name: c_int) -> c_int;
        #[hold_standard]
        fn hlthunk_open(name: c_int, busid: *const c_char) -> c_int;
        fn hlthunk_close(fd: c_int) -> c_int;
        fn hlthunk_get_device_name_from_fd(fd: c_int) -> c_int;
        fn hlthunk_get_pci_bus_id_from_fd(fd: c_int, out: *mut c_char, len: c_int) -> c_int;
        #[hold_standard]
        fn hlthunk_device_memory_alloc(fd: c_int, size: u64, page_size: u64, contiguous: bool, shared: bool) -> u64;
        fn hlthunk_device_memory_free(fd: c_int, handle: u64) -> c_int;
        fn hlthunk_device_memory_map(fd: c_int, handle: u64, hint: u64) -> u64;
        fn hlthunk_memory_unmap(fd: c_int, va: u64) -> c_int;
        #[hold_standard]
        fn hlthunk_device_memory_export_dmabuf_fd(fd: c_int, addr: u64, size: u64, flags: u32) -> c_int;
        #[hold_standard]
        fn hlthunk_device_mapped_memory_export_dmabuf_fd(fd: c_int, addr: u64, size: u64, offset: u64, flags: u32) -> c_int;
    }
}

/// `enum hlthunk_device_name`: the first generation, whose memory another call exports, and any device.
const GAUDI: c_int = 2;
const DONT_CARE: c_int = 4;
/// The only flags that the kernel driver accepts.
const EXPORT_FLAGS: u32 = (libc::O_RDWR | libc::O_CLOEXEC) as u32;

/// The device that is open for memory of this library, and the number of its blocks.
#[derive(Default)]
struct OwnDevice {
    fd: Option<c_int>,
    blocks: usize,
}

/// Memory allocated through libhl-thunk.
#[derive(Clone, Copy)]
pub struct Block {
    fd: c_int,
    pub va: u64,
    handle: u64,
}

pub struct Thunk {
    lib: HlThunk,
    own_device: Mutex<OwnDevice>,
}

fn failed(what: &str, rc: c_int) -> Error {
    match rc {
        -4095..=-1 => Error::new(-rc, format!("{what}: {rc} ({})", errno::words(-rc))),
        _ => Error::new(errno::EIO, format!("{what}: {rc}")),
    }
}

impl Thunk {
    pub fn open(adopt: bool) -> Result<Thunk> {
        let lib = HlThunk::load(Library::open(&["libhl-thunk.so", "libhl-thunk.so.1"], adopt)?);
        Ok(Thunk { lib, own_device: Mutex::default() })
    }

    /// Number of devices of this host.
    pub fn count(&self) -> Result<u32> {
        // SAFETY: no preconditions.
        let count = unsafe { self.lib.hlthunk_get_device_count(DONT_CARE)? };
        u32::try_from(count).map_err(|_| failed("hlthunk_get_device_count", count))
    }

    /// "0000:4d:00.0" of the device open at `fd`.
    pub fn pci(&self, fd: c_int) -> Option<String> {
        let mut text = [0u8; 32];
        // SAFETY: the last byte is kept, so that a NUL ends the text in any case.
        let rc = unsafe { self.lib.hlthunk_get_pci_bus_id_from_fd(fd, text.as_mut_ptr().cast(), 31) };
        (rc.ok()? == 0).then(|| CStr::from_bytes_until_nul(&text).ok()?.to_str().ok().map(str::to_string))?
    }

    /// The reason why memory cannot be exported as a dma-buf, if there is one.
    pub fn lacks_export(&self) -> Option<Error> {
        const NAMES: [&str; 2] = ["hlthunk_device_mapped_memory_export_dmabuf_fd", "hlthunk_device_memory_export_dmabuf_fd"];
        NAMES.iter().all(|name| !self.lib.has(name)).then(|| Library::lacks(self.lib.library(), NAMES[0]))
    }

    /// A dma-buf of `[base + at, base + at + len)`. `base` must be exactly the address that the driver mapped.
    pub fn export(&self, fd: c_int, base: u64, at: u64, len: u64) -> Result<DmaBuf> {
        let (start, size, within) = dmabuf::widen(at, len)?;
        // SAFETY: numbers only.
        let first = unsafe { self.lib.hlthunk_get_device_name_from_fd(fd) }.is_ok_and(|name| name == GAUDI);
        let (what, rc) = if first {
            // SAFETY: numbers only; the result is a new descriptor.
            let rc = unsafe { self.lib.hlthunk_device_memory_export_dmabuf_fd(fd, base.saturating_add(start), size, EXPORT_FLAGS)? };
            ("hlthunk_device_memory_export_dmabuf_fd", rc)
        } else {
            // SAFETY: takes numbers only; the result is a new descriptor.
            let rc = unsafe { self.lib.hlthunk_device_mapped_memory_export_dmabuf_fd(fd, base, size, start, EXPORT_FLAGS)? };
            ("hlthunk_device_mapped_memory_export_dmabuf_fd", rc)
        };
        if rc < 0 {
            return Err(failed(what, rc));
        }
        // SAFETY: the driver made this descriptor, and the caller has to close it.
        dmabuf::checked(unsafe { OwnedFd::from_raw_fd(rc) }, within, len)
    }

    /// Exports part of a block.
    pub fn export_block(&self, block: &Block, at: u64, len: u64) -> Result<DmaBuf> {
        self.export(block.fd, block.va, at, len)
    }

    /// Allocates on the first free device. The device stays open as long as such memory exists.
    pub fn alloc(&self, len: u64) -> Result<Block> {
        let mut own_device = self.own_device.lock();
        let fd = match own_device.fd {
            Some(fd) => fd,
            None => {
                // SAFETY: without a bus id, any device.
                let fd = unsafe { self.lib.hlthunk_open(DONT_CARE, std::ptr::null())? };
                if fd < 0 {
                    return Err(
                        failed("hlthunk_open", fd).context("no Gaudi device is free, and this process has acquired none by SynapseAI")
                    );
                }
                *own_device.fd.insert(fd)
            }
        };
        let block = self.block(fd, len);
        own_device.blocks += block.is_ok() as usize;
        self.release_if_unused(&mut own_device);
        block
    }

    fn block(&self, fd: c_int, len: u64) -> Result<Block> {
        // SAFETY: numbers only; page size 0 is the default.
        let handle = unsafe { self.lib.hlthunk_device_memory_alloc(fd, len, 0, true, true)? };
        if handle == 0 {
            return Err(Error::new(errno::ENOMEM, format!("hlthunk_device_memory_alloc: no {len} bytes")));
        }
        // SAFETY: the handle was made above.
        let va = unsafe { self.lib.hlthunk_device_memory_map(fd, handle, 0) };
        match va {
            Ok(va) if va != 0 => Ok(Block { fd, va, handle }),
            other => {
                // SAFETY: made above, and no other code knows it.
                unsafe { self.lib.hlthunk_device_memory_free(fd, handle)? };
                Err(other.err().unwrap_or(Error::fixed(errno::ENOMEM, "hlthunk_device_memory_map: no address")))
            }
        }
    }

    pub fn free(&self, block: Block) -> Result<()> {
        let mut own_device = self.own_device.lock();
        // SAFETY: the block was made by `alloc`, and its owner gives it up.
        let (unmap, free) = unsafe {
            let unmap = self.lib.hlthunk_memory_unmap(block.fd, block.va)?;
            (unmap, self.lib.hlthunk_device_memory_free(block.fd, block.handle)?)
        };
        own_device.blocks = own_device.blocks.saturating_sub(1);
        self.release_if_unused(&mut own_device);
        match (unmap, free) {
            (0, 0) => Ok(()),
            (0, rc) => Err(failed("hlthunk_device_memory_free", rc)),
            (rc, _) => Err(failed("hlthunk_memory_unmap", rc)),
        }
    }

    /// Closes the device if no block is left, because a device serves only one process.
    fn release_if_unused(&self, own_device: &mut OwnDevice) {
        if let (0, Some(fd)) = (own_device.blocks, own_device.fd) {
            own_device.fd = None;
            // SAFETY: opened by `alloc`, and no block of it is left.
            if let Err(e) = unsafe { self.lib.hlthunk_close(fd) } {
                crate::log!(Warn, "{e}");
            }
        }
    }
}
