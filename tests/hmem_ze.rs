// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Level Zero memory against the fake loader of `c-tests/fakes`; `fakes` says how the cases run.

mod fakes;

use fakes::{Case, again, fails, fds, hex, load, pattern, refuse, refused, store, unhex};
use gdrfab::error::errno;
use gdrfab::hmem::{self, Dir, HANDLE_BYTES, Iface, Interface, MemoryKind, Offer};
use libloading::os::unix::Library;
use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd};
use std::process::Stdio;
use std::ptr::null_mut;

const CASES: &[Case] = &[
    ("detection", "", &[], detection),
    ("memory of the application", "", &[], application),
    ("dma-buf", "", &[], dmabuf),
    ("no dma-buf", "", &[("FAKE_ZE_EXPORT", "1"), ("FAKE_ZE_IPC", "2")], no_dmabuf),
    ("ipc", "", &[], ipc),
    ("ipc of an old loader", "old", &[], ipc),
    ("copies", "", &[], copies),
    ("broken stream", "", &[("FAKE_FAULT", "ze_copy_engine=0x70000001@2")], broken_stream),
    ("faults", "", &[], faults),
    ("no gpu", "", &[("FAKE_DEVICES", "0")], || refused(Iface::Ze, errno::ENODEV, "no usable GPU: zeInit: 0x78000001")),
    ("not loaded", "", &[("GDRFAB_HMEM_DRIVER", "adopt")], || refused(Iface::Ze, errno::ENOSYS, "is not loaded")),
    ("adopted", "", &[("GDRFAB_HMEM_DRIVER", "adopt")], adopted),
    ("unknown code", "", &[("FAKE_FAULT", "zeDriverGet=0x77")], || refused(Iface::Ze, errno::EIO, "zeDriverGet: 0x77")),
    ("lost", "", &[("FAKE_FAULT", "zeContextCreate=0x70000001")], || refused(Iface::Ze, errno::ENODEV, "ERROR_DEVICE_LOST")),
];

const PAGE: u64 = 4096;

#[test]
fn ze() {
    fakes::each(CASES, &[("importer", importer)]);
}

fn up() -> &'static dyn Interface {
    hmem::get(Iface::Ze).unwrap()
}

/// The application's side: its library, context and first device.
struct App(Library, *mut c_void, *mut c_void);

#[repr(C)]
struct Desc {
    stype: u32,
    next: *const c_void,
    flags: u32,
    number: u32,
}

type List = unsafe extern "C" fn(*mut c_void, *mut u32, *mut *mut c_void) -> u32;

impl App {
    fn new() -> App {
        // SAFETY: the fake has no constructors.
        let library = unsafe { Library::new("libze_loader.so.1") }.unwrap();
        let (mut one, mut driver, mut device, mut context) = (1, null_mut(), null_mut(), null_mut());
        // SAFETY: the prototypes of ze_api.h.
        unsafe {
            assert_eq!(library.get::<unsafe extern "C" fn(u32) -> u32>(b"zeInit\0").unwrap()(1), 0);
            type Drivers = unsafe extern "C" fn(*mut u32, *mut *mut c_void) -> u32;
            assert_eq!(library.get::<Drivers>(b"zeDriverGet\0").unwrap()(&mut one, &mut driver), 0);
            assert_eq!(library.get::<List>(b"zeDeviceGet\0").unwrap()(driver, &mut one, &mut device), 0);
            type Create = unsafe extern "C" fn(*mut c_void, *const Desc, *mut *mut c_void) -> u32;
            let desc = Desc { stype: 0xd, next: null_mut(), flags: 0, number: 0 };
            assert_eq!(library.get::<Create>(b"zeContextCreate\0").unwrap()(driver, &desc, &mut context), 0);
        }
        App(library, context, device)
    }

    /// Device memory that was allocated without a request for export.
    fn device(&self, len: usize) -> u64 {
        type Alloc = unsafe extern "C" fn(*mut c_void, *const Desc, usize, usize, *mut c_void, *mut *mut c_void) -> u32;
        let (desc, mut at) = (Desc { stype: 0x15, next: null_mut(), flags: 0, number: 0 }, null_mut());
        // SAFETY: the prototype of ze_api.h.
        assert_eq!(unsafe { self.0.get::<Alloc>(b"zeMemAllocDevice\0").unwrap()(self.1, &desc, len, 0, self.2, &mut at) }, 0);
        at as u64
    }

    fn host(&self, len: usize) -> u64 {
        type Alloc = unsafe extern "C" fn(*mut c_void, *const Desc, usize, usize, *mut *mut c_void) -> u32;
        let (desc, mut at) = (Desc { stype: 0x16, next: null_mut(), flags: 0, number: 0 }, null_mut());
        // SAFETY: the prototype of ze_api.h.
        assert_eq!(unsafe { self.0.get::<Alloc>(b"zeMemAllocHost\0").unwrap()(self.1, &desc, len, 0, &mut at) }, 0);
        at as u64
    }

    fn shared(&self, len: usize) -> u64 {
        type Alloc = unsafe extern "C" fn(*mut c_void, *const Desc, *const Desc, usize, usize, *mut c_void, *mut *mut c_void) -> u32;
        let desc = |stype| Desc { stype, next: null_mut(), flags: 0, number: 0 };
        let mut at = null_mut();
        // SAFETY: the prototype of ze_api.h.
        let result =
            unsafe { self.0.get::<Alloc>(b"zeMemAllocShared\0").unwrap()(self.1, &desc(0x15), &desc(0x16), len, 0, self.2, &mut at) };
        assert_eq!(result, 0);
        at as u64
    }
}

fn adopted() {
    // SAFETY: the fake has no constructors.
    let loaded = unsafe { Library::new("libze_loader.so.1") }.unwrap();
    refused(Iface::Ze, errno::ENODEV, "the process has not initialised Level Zero");
    let _app = App::new();
    assert_eq!(up().devices().len(), 2);
    drop(loaded);
}

fn uuid(index: u8) -> [u8; 16] {
    let mut id = [0x5a; 16];
    id[15] = index;
    id
}

fn detection() {
    let up = up();
    let facts = up.devices();
    assert_eq!((facts.len(), facts[1].pci.as_str(), facts[1].name.as_str()), (2, "0000:31:00.0", "Fake Data Center GPU"));
    assert_eq!((facts[1].id, &facts[1].peers, facts[1].memory), (uuid(1), &vec![0], 16 << 30));
    assert!(facts[1].dmabuf.is_none() && facts[1].ipc.is_none());

    let a = up.alloc(1, PAGE + 1).unwrap();
    let found = up.detect(a + 5).unwrap().unwrap();
    assert_eq!((found.base, found.len, found.device, found.kind), (a, 2 * PAGE, 1, MemoryKind::Plain));
    assert!(found.id != 0 && up.identity(a) == Some(found.id) && up.identity(a + PAGE) == Some(found.id));
    assert!(up.detect(&found as *const _ as u64).unwrap().is_none() && up.detect(0).unwrap().is_none());
    assert_eq!(hmem::span(up, a, 2 * PAGE).unwrap().len(), 1);
    assert!(hmem::span(up, a, 1 << 40).is_err());
    up.free(a).unwrap();
    assert_eq!(up.identity(a), None);
    fails(up.free(a), errno::EINVAL, "not an address that gdrfab allocated");
    if let Some(b) = (0..50).map(|_| up.alloc(1, 2 * PAGE).unwrap()).find(|b| *b == a) {
        assert_ne!(up.identity(b).unwrap(), found.id);
    }
    fails(up.alloc(7, 1), errno::EINVAL, "device");
}

fn application() {
    let (app, up) = (App::new(), up());
    let (a, h, s) = (app.device(100), app.host(PAGE as usize), app.shared(PAGE as usize));
    let kinds = [a, h + 1, s + 9].map(|at| up.detect(at).unwrap().unwrap().kind);
    assert_eq!(kinds, [MemoryKind::Plain, MemoryKind::Pinned, MemoryKind::Managed]);
    fails(up.export_dmabuf(a, 1, false), errno::EOPNOTSUPP, "ze_external_memory_export_desc_t");
    fails(up.export_dmabuf(h, 1, false), errno::EOPNOTSUPP, "pinned host");
    fails(up.export_dmabuf(s, 1, false), errno::EOPNOTSUPP, "managed");
    // Sharing between processes needs no such request.
    assert_eq!(up.export(&up.detect(a + 50).unwrap().unwrap()).unwrap().base, a);
    fails(up.free(a), errno::EINVAL, "not an address that gdrfab allocated");
}

fn dmabuf() {
    let up = up();
    let a = up.alloc(0, 4 * PAGE).unwrap();
    // The result is the driver's own descriptor each time: closing a duplicate does not affect it.
    for _ in 0..3 {
        let buf = up.export_dmabuf(a + 100, 200, true).unwrap();
        assert_eq!((buf.offset, buf.len), (100, 4 * PAGE));
    }
    fails(up.export_dmabuf(a + PAGE, 4 * PAGE, false), errno::EINVAL, "beyond their allocation");
    fails(up.export_dmabuf(&up as *const _ as u64, 1, false), errno::EINVAL, "not ze memory");
}

fn no_dmabuf() {
    let up = up();
    assert!(up.devices()[0].dmabuf.is_some() && up.devices()[0].ipc.is_some());
    fails(up.export_dmabuf(up.alloc(0, 1).unwrap(), 1, false), errno::EOPNOTSUPP, "not as dma-buf");
}

fn ipc() {
    let up = up();
    let a = up.alloc(1, 3 * PAGE).unwrap();
    store(up, 1, a + PAGE, b"from the exporter").unwrap();
    let export = up.export(&up.detect(a + 7).unwrap().unwrap()).unwrap();
    assert_eq!((export.base, export.len, export.device), (a, 3 * PAGE, uuid(1)));
    // The descriptor is passed as the importer's standard input.
    assert!(again("importer").env("HANDLE", hex(&export.handle)).stdin(Stdio::from(export.fd.unwrap())).status().unwrap().success());
    assert_eq!(load(up, 1, a + 2 * PAGE - 4, 8).unwrap(), b"imported");
}

fn importer() {
    let up = up();
    let handle = unhex(&std::env::var("HANDLE").unwrap());
    let (input, null) = (std::io::stdin(), std::fs::File::open("/dev/null").unwrap());
    let offer = |how, len| Offer { how, device: uuid(1), handle, fd: Some(input.as_fd()), len };
    let open = |len| up.import(&offer(1, len), None);
    let one = open(3 * PAGE).unwrap();
    assert_eq!((one.device, one.len), (1, 3 * PAGE));
    assert_eq!(load(up, 1, one.base + PAGE, 17).unwrap(), b"from the exporter");
    store(up, 1, one.base + 2 * PAGE - 4, b"imported").unwrap();
    assert_eq!(up.detect(one.base + 1).unwrap().unwrap().kind, MemoryKind::Imported);
    fails(up.export(&up.detect(one.base).unwrap().unwrap()).map(|_| ()), errno::EOPNOTSUPP, "imported");
    let (two, base) = (up.import(&offer(1, 3 * PAGE), Some(0)).unwrap(), one.base);
    assert_eq!(two.device, 1);
    drop((one, two));
    assert!(up.detect(base).unwrap().is_none());
    // A peer that gives a wrong length, handle, descriptor or kind.
    fails(open(64 * PAGE), errno::EINVAL, "its file has");
    fails(up.import(&offer(9, PAGE), None), errno::EINVAL, "kind 9");
    fails(up.import(&Offer { fd: None, ..offer(1, PAGE) }, None), errno::EINVAL, "without a file descriptor");
    fails(up.import(&Offer { fd: Some(null.as_fd()), ..offer(1, PAGE) }, None), errno::EINVAL, "its file has 0");
    fails(up.import(&Offer { handle: [0; HANDLE_BYTES], ..offer(1, PAGE) }, None), errno::EINVAL, "zeMemOpenIpcHandle");
    // SAFETY: only one thread of this process reads the environment.
    unsafe { std::env::set_var("FAKE_ZE_PEER", "0") };
    fails(up.import(&offer(1, PAGE), Some(0)), errno::EOPNOTSUPP, "cannot reach");
    fails(up.import(&Offer { device: [7; 16], ..offer(1, PAGE) }, None), errno::ENODEV, "not visible");
    assert_eq!(input.as_raw_fd(), 0);
}

fn copies() {
    let up = up();
    let (a, b) = (up.alloc(0, 4 * PAGE).unwrap(), up.alloc(1, 4 * PAGE).unwrap());
    let text = pattern(PAGE as usize);
    store(up, 0, a + 100, &text).unwrap();
    // SAFETY: device memory.
    unsafe { up.copy(0, Dir::Within, b + 50, a + 100, text.len()) }.unwrap();
    assert_eq!(load(up, 1, b + 50, text.len()).unwrap(), text);
    std::thread::scope(|threads| {
        for i in 0..4 {
            threads.spawn(move || (0..200).for_each(|_| store(up, 0, a + 8 * i, &[i as u8; 8]).unwrap()));
        }
    });

    // Every copy reads the bytes that the one before wrote.
    let mut host = vec![1u8, 2, 3, 4, 5, 6, 7, 8];
    let h = host.as_mut_ptr() as u64;
    let mut stream = up.stream(0).unwrap();
    let mut last = 0;
    for round in 0..100 {
        // SAFETY: all buffers live until the stream is done.
        unsafe {
            stream.post(Dir::ToDevice, a, h, 8).unwrap();
            stream.post(Dir::Within, b + 8, a, 8).unwrap();
            stream.post(Dir::Within, a + 16, b + 8, 8).unwrap();
            if round % 20 == 0 {
                stream.post(Dir::Within, a + 16, b + 8, 0).unwrap();
            }
            last = stream.post(Dir::FromDevice, h, a + 16, 8).unwrap();
        }
        if round % 30 == 0 {
            stream.done().unwrap();
        }
    }
    assert_eq!(last, 405);
    while stream.done().unwrap() != last {}
    drop(stream);
    assert_eq!((load(up, 0, a + 16, 8).unwrap(), host), ((1..=8).collect(), (1..=8).collect()));

    // A stream dropped with copies in flight waits for them.
    let mut stream = up.stream(1).unwrap();
    // SAFETY: device memory.
    unsafe {
        stream.post(Dir::Within, a + 64, b + 8, 4).unwrap();
        stream.post(Dir::Within, a + 68, a + 64, 4).unwrap();
    }
    drop(stream);
    assert_eq!(load(up, 0, a + 68, 4).unwrap(), [1, 2, 3, 4]);
}

fn broken_stream() {
    let e = fakes::broken_stream(up());
    assert!(e.errno == errno::ENODEV && e.words.contains("DEVICE_LOST"), "{e}");
}

/// Every call refused once, with nothing left open.
fn faults() {
    let up = up();
    let a = up.alloc(0, PAGE).unwrap();
    let all = up.detect(a).unwrap().unwrap();
    let before = fds();
    // SAFETY: device memory.
    let within = || unsafe { up.stream(0)?.post(Dir::Within, a, a + 64, 64) }.map(|_| ());
    refuse("zeMemAllocDevice=0x70000003", errno::ENOMEM, &|| up.alloc(0, 1).map(|_| ()));
    refuse("zeMemGetAllocProperties=0x70000001", errno::ENODEV, &|| up.detect(a).map(|_| ()));
    refuse("zeMemGetAddressRange=0x78000021", errno::EINVAL, &|| up.detect(a).map(|_| ()));
    refuse("zeMemGetAllocProperties=0x78000003", errno::EOPNOTSUPP, &|| up.export_dmabuf(a, 1, false).map(|_| ()));
    refuse("zeMemGetIpcHandle=0x7abc0000", errno::EIO, &|| up.export(&all).map(|_| ()));
    refuse("zeCommandListCreateImmediate=0x70000002", errno::ENOMEM, &|| store(up, 0, a, &[1, 2]));
    refuse("zeCommandListAppendMemoryCopy=0x70000001", errno::ENODEV, &|| store(up, 0, a, &[1, 2]));
    refuse("zeCommandListCreateImmediate=0x70000002", errno::ENOMEM, &within);
    refuse("zeEventPoolCreate=0x70000003", errno::ENOMEM, &within);
    refuse("zeEventCreate=0x70000003", errno::ENOMEM, &within);
    refuse("zeCommandListAppendMemoryCopy=0x78000004", errno::EINVAL, &within);
    // The one allocation more holds one descriptor of the fake.
    assert_eq!(fds(), before + 1);
}
