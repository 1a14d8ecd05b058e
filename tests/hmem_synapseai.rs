// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Gaudi memory against the fake libraries of `c-tests/fakes`; `fakes` says how the cases run.

mod fakes;

use fakes::{Case, fails, fault, fds, pattern, refused};
use gdrfab::error::{Result, errno};
use gdrfab::hmem::{self, Dir, Iface, Interface};
use libloading::os::unix::Library;
use std::ffi::c_int;
use std::os::fd::AsRawFd;

const CASES: &[Case] = &[
    ("acquired", "", &[], acquired),
    ("first generation", "old:.", &[], first_generation),
    ("old software", "", &[("FAKE_SYNAPSE_OLD", "1")], old_software),
    ("without SynapseAI", "", &[], without_synapse),
    ("adopted", "", &[("GDRFAB_HMEM_DRIVER", "adopt")], adopted),
    ("no device", "", &[("FAKE_DEVICES", "0")], no_device),
    ("faults", "", &[], faults),
];

/// The application's side.
struct App(Library);

impl App {
    /// With its first device acquired.
    fn new() -> App {
        let app = App::loaded();
        app.acquire();
        app
    }

    fn loaded() -> App {
        // SAFETY: the fake has no constructors.
        App(unsafe { Library::new("libSynapse.so") }.unwrap())
    }

    fn acquire(&self) -> u32 {
        let mut device = 99;
        // SAFETY: the prototypes of synapse_api.h.
        unsafe {
            assert_eq!(self.0.get::<unsafe extern "C" fn() -> c_int>(b"synInitialize\0").unwrap()(), 0);
            let acquire = self.0.get::<unsafe extern "C" fn(*mut u32, u32) -> c_int>(b"synDeviceAcquireByModuleId\0").unwrap();
            assert_eq!(acquire(&mut device, 0), 0);
        }
        device
    }

    fn release(&self) {
        // SAFETY: the prototype of synapse_api.h.
        unsafe { assert_eq!(self.0.get::<unsafe extern "C" fn(u32) -> c_int>(b"synDeviceRelease\0").unwrap()(0), 0) }
    }

    fn malloc(&self, len: u64) -> u64 {
        let mut addr = 0;
        type Malloc = unsafe extern "C" fn(u32, u64, u64, u32, *mut u64) -> c_int;
        // SAFETY: the prototype of synapse_api.h.
        unsafe { assert_eq!(self.0.get::<Malloc>(b"synDeviceMalloc\0").unwrap()(0, len, 0, 0, &mut addr), 0) };
        addr
    }
}

#[test]
fn synapseai() {
    fakes::each(CASES, &[]);
}

fn up() -> &'static dyn Interface {
    hmem::get(Iface::SynapseAi).unwrap()
}

fn store(to: u64, bytes: &[u8]) -> Result<()> {
    fakes::store(up(), 0, to, bytes)
}

fn load(from: u64, len: usize) -> Result<Vec<u8>> {
    fakes::load(up(), 0, from, len)
}

/// The device address that the exported `[addr, addr+len)` begins at, as the fake noted it in its dma-buf.
fn exported(addr: u64, len: u64) -> Result<u64> {
    let buf = up().export_dmabuf(addr, len, false)?;
    assert!(buf.offset + len <= buf.len && buf.len <= len + 8192 && buf.len % 4096 == 0);
    let text = std::fs::read(format!("/proc/self/fd/{}", buf.fd.as_raw_fd())).unwrap();
    let text = String::from_utf8_lossy(&text[..64]).trim_end_matches('\0').to_string();
    let mut words = text.split(' ').skip(1);
    let base = u64::from_str_radix(words.next().unwrap().trim_start_matches("0x"), 16).unwrap();
    assert_eq!(words.next().unwrap().parse::<u64>().unwrap(), buf.len);
    Ok(base + buf.offset)
}

fn acquired() {
    let app = App::new();
    let (a, b) = (app.malloc(5 << 20), app.malloc(3 << 20));
    let up = up();
    assert_eq!((up.devices()[0].pci.as_str(), up.devices()[0].memory), ("0000:4d:00.0", 32 << 20));
    assert!(up.devices()[0].dmabuf.is_none() && up.devices()[0].ipc.is_some());
    let found = up.detect(b + 77).unwrap().unwrap();
    assert_eq!((found.base, found.len, found.id, found.device), (a, 32 << 20, 0, 0));
    assert_eq!(hmem::detect(b).unwrap(), found);
    assert_eq!(up.export(&found).unwrap_err().errno, errno::EOPNOTSUPP);
    let bytes = pattern(2_500_000);
    store(a + 1, &bytes).unwrap();
    // SAFETY: device memory on both sides.
    unsafe { up.copy(0, Dir::Within, b + 3, a + 1, bytes.len()).unwrap() };
    assert_eq!(load(b + 3, bytes.len()).unwrap(), bytes);
    let before = fds();
    assert_eq!(exported(b + 5000, 9000).unwrap(), b + 5000);
    assert_eq!(fds(), before);
    // Allocated by the library: such memory has an identity, and never starts at a page boundary.
    app.malloc(256);
    let c = up.alloc(0, 5000).unwrap();
    assert_ne!(c % 4096, 0);
    let ours = up.detect(c + 4999).unwrap().unwrap();
    assert!(ours.base == c && ours.len == 8192 && ours.id != 0);
    assert_eq!(exported(c, 8192).unwrap(), c);
    store(c, b"ours").unwrap();
    assert_eq!(load(c, 4).unwrap(), b"ours");
    up.free(c).unwrap();
    assert_eq!((up.alloc(0, 5000).unwrap(), up.identity(c)), (c, Some(ours.id + 1)));
    assert_eq!(up.free(c + 1).unwrap_err().errno, errno::EINVAL);
    assert_eq!(up.alloc(1, 5000).unwrap_err().errno, errno::ENODEV);
    assert_eq!(store(a + (32 << 20) - 1, &[1, 2]).unwrap_err().errno, errno::EINVAL);
    let mut stream = up.stream(0).unwrap();
    // SAFETY: a static slice.
    assert_eq!(unsafe { stream.post(Dir::ToDevice, b, b"static".as_ptr() as u64, 6) }.unwrap(), 1);
    assert_eq!((stream.done().unwrap(), load(b, 6).unwrap()), (1, b"static".to_vec()));
    // Releasing a device frees its memory; after acquiring it again, copies work again.
    app.release();
    assert!(up.detect(a).unwrap().is_none());
    app.acquire();
    let d = app.malloc(4096);
    store(d, b"anew").unwrap();
    assert_eq!(load(d, 4).unwrap(), b"anew");
}

fn first_generation() {
    let app = App::new();
    let a = app.malloc(1 << 20);
    store(a + 1, b"gaudi").unwrap();
    assert_eq!((load(a + 1, 5).unwrap(), exported(a + 4097, 4096).unwrap()), (b"gaudi".to_vec(), a + 4097));
}

fn old_software() {
    let app = App::new();
    let a = app.malloc(1 << 20);
    store(a + 1, b"gaudi").unwrap();
    assert_eq!(load(a + 1, 5).unwrap(), b"gaudi");
    fails(exported(a, 4096), errno::EOPNOTSUPP, "globalHbmBaseAddress");
}

fn without_synapse() {
    let up = up();
    assert_eq!(up.devices().len(), 2);
    let before = fds();
    let (a, b) = (up.alloc(0, 10000).unwrap(), up.alloc(0, 10000).unwrap());
    assert_eq!(fds(), before + 3, "one device, two allocations of the fake");
    let found = up.detect(b + 10000).unwrap().unwrap();
    assert!(found.base == b && found.len == 12288 && found.id == 2);
    assert_eq!(exported(b + 5000, 100).unwrap(), b + 5000);
    fails(store(a, &[1]), errno::ENOSYS, "SynapseAI");
    assert_eq!(up.alloc(1, 10000).unwrap_err().errno, errno::ENODEV);
    fault("hlthunk_device_memory_map=1");
    assert_eq!(up.alloc(0, 4096).unwrap_err().errno, errno::ENOMEM);
    fault("");
    up.free(a).unwrap();
    up.free(b).unwrap();
    assert_eq!(fds(), before, "the device is free for others again");
    assert!(up.detect(a).unwrap().is_none());
    fault("hlthunk_open=-16");
    assert_eq!(up.alloc(0, 4096).unwrap_err().errno, errno::EBUSY);
}

fn adopted() {
    let e = hmem::get(Iface::SynapseAi).map(|_| ()).unwrap_err();
    assert!(e.words.contains("libSynapse.so") && e.words.contains("libhl-thunk.so"), "{e}");
    let app = App::loaded();
    refused(Iface::SynapseAi, errno::ENODEV, "");
    app.acquire();
    assert!(up().detect(app.malloc(100)).unwrap().is_some());
}

fn no_device() {
    refused(Iface::SynapseAi, errno::ENODEV, "");
}

fn faults() {
    let app = App::new();
    let a = app.malloc(1 << 20);
    store(a, &pattern(100)).unwrap();
    let before = fds();
    for (text, errno, words) in [
        ("hlthunk_device_mapped_memory_export_dmabuf_fd=-22", errno::EINVAL, "-22"),
        ("hlthunk_device_mapped_memory_export_dmabuf_fd=-24", errno::EMFILE, "-24"),
        ("hlthunk_device_mapped_memory_export_dmabuf_fd=-99999", errno::EIO, "-99999"),
    ] {
        fault(text);
        let e = exported(a, 4096).unwrap_err();
        assert!(e.errno == errno && e.words.contains(words), "{text}: {e}");
    }
    for (text, errno) in [
        ("synMemCopyAsync=17", errno::EIO),
        ("synStreamSynchronize=42", errno::ETIMEDOUT),
        ("synHostMap=3", errno::ENOMEM),
        ("synStreamCreateGeneric=4711", errno::EIO),
        ("synDeviceGetInfoV2=28", errno::EINVAL),
    ] {
        fault(text);
        let e = load(a, 100).unwrap_err();
        assert!(e.errno == errno && (errno == errno::EINVAL || e.words.contains(text.split('=').next().unwrap())), "{text}: {e}");
    }
    fault("synDeviceMalloc=4");
    assert_eq!(up().alloc(0, 1).unwrap_err().errno, errno::ENOMEM);
    fault("");
    assert_eq!(load(a, 100).unwrap(), pattern(100));
    assert_eq!(fds(), before);
}
