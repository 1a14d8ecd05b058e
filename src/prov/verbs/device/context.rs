// SPDX-License-Identifier: Apache-2.0 OR MIT
//! RDMA devices: opening by name, and reading the attributes of a device and its ports.

use super::gid::{Gid, GidTable};
use crate::error::{Error, Result, errno};
use crate::prov::verbs::sys::abi::ibv_odp_transport_cap_bits as odp;
use crate::prov::verbs::sys::abi::{
    ibv_atomic_cap, ibv_context, ibv_device, ibv_device_attr, ibv_event_type, ibv_odp_general_caps, ibv_port_state, ibv_transport_type,
};
use crate::prov::verbs::sys::async_event::AsyncEvent;
use crate::prov::verbs::sys::extended;
use crate::prov::verbs::sys::library::{last_errno, verbs};
use crate::prov::verbs::sys::status::{call_error, pointer, returned};
use std::ffi::{CStr, c_int};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// The transport protocol of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// InfiniBand transport, over InfiniBand links or Ethernet (RoCE).
    Ib,
    Iwarp,
    /// Another `enum ibv_transport_type`, which has no RC queue pairs as this provider uses them.
    Other(i32),
}

/// `IBV_LINK_LAYER_ETHERNET`.
const LINK_ETHERNET: u8 = 2;

/// The position of a device in this host, as far as the device has one.
#[derive(Clone, Debug, Default)]
pub struct Topology {
    /// "0000:3b:00.0".
    pub pci: Option<String>,
    /// The device's directory under /sys/devices. The parent directories are the bridges above the device.
    pub path: Option<PathBuf>,
    pub numa: Option<u32>,
}

/// The scope of the device's atomic operations: none, atomic among the operations of this device, or atomic with those
/// of the host's CPUs as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomics {
    None,
    Device,
    Global,
}

/// On-demand paging: the uses of an unpinned region that are possible on a reliable connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Odp {
    pub supported: bool,
    /// One region can be the whole address space.
    pub implicit: bool,
    pub send: bool,
    pub recv: bool,
    pub write: bool,
    pub read: bool,
    pub atomic: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLayer {
    InfiniBand,
    Ethernet,
}

/// The attributes of a port at the time of reading.
#[derive(Clone)]
pub struct Port {
    pub number: u8,
    /// Traffic can flow.
    pub active: bool,
    /// "active", "down" and the like.
    pub state: &'static str,
    pub lid: u16,
    /// In bytes.
    pub mtu: u32,
    pub link: LinkLayer,
    /// Bits per second; 0 if unknown.
    pub speed: u64,
    /// The longest message, in bytes.
    pub max_message: u32,
    pub gids: Vec<Gid>,
}

/// An open device.
pub struct Context {
    raw: NonNull<ibv_context>,
    pub name: String,
    pub attr: ibv_device_attr,
    pub transport: Transport,
    /// The node GUID of the device, in host byte order.
    pub guid: u64,
    pub topology: Topology,
    pub(in crate::prov::verbs) inline: OnceLock<usize>,
    dmabuf: OnceLock<Result<()>>,
    odp: OnceLock<Result<Odp>>,
    gone: AtomicBool,
}

// SAFETY: libibverbs may be called from any thread; the fields are written in `open_of` only, or are atomic.
unsafe impl Send for Context {}
// SAFETY: libibverbs locks the calls that several threads may make at once.
unsafe impl Sync for Context {}

/// The list of the devices of this host. A device of the list can be used as long as the list lives. Making the list
/// reads sysfs for each device.
pub struct Devices {
    raw: *mut *mut ibv_device,
    len: usize,
}

impl Devices {
    pub fn list() -> Result<Devices> {
        let mut len: c_int = 0;
        // SAFETY: the call writes the count on success.
        let raw = unsafe { verbs()?.ibv_get_device_list(&mut len)? };
        if raw.is_null() {
            return Err(match last_errno() {
                errno::ENOSYS => {
                    Error::fixed(errno::ENOSYS, "listing RDMA devices: the kernel has no RDMA support loaded (module ib_uverbs)")
                }
                err => call_error("listing RDMA devices", err),
            });
        }
        Ok(Devices { raw, len: usize::try_from(len).unwrap_or(0) })
    }

    pub fn names(&self) -> Vec<String> {
        self.devices().map(|(_, name)| name).collect()
    }

    fn devices(&self) -> impl Iterator<Item = (*mut ibv_device, String)> {
        let at = |i| {
            // SAFETY: the list has `len` elements.
            let device = unsafe { *self.raw.add(i) };
            // SAFETY: a device of the list; its name ends with NUL.
            let name =
                unsafe { verbs().and_then(|v| v.ibv_get_device_name(device)).ok().filter(|n| !n.is_null()).map(|n| CStr::from_ptr(n)) };
            Some((device, name?.to_string_lossy().into_owned()))
        };
        (0..self.len).filter_map(at)
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        // SAFETY: made by `list`, and freed once, here.
        let _ = verbs().and_then(|v| unsafe { v.ibv_free_device_list(self.raw) });
    }
}

fn sysfs(name: &str) -> PathBuf {
    PathBuf::from("/sys/class/infiniband").join(name)
}

/// True if a text is a PCI address such as "0000:3b:00.0": domain, bus, device and function.
pub(in crate::prov::verbs) fn is_pci(text: &str) -> bool {
    let hex = |part: &str, len: usize| part.len() >= len && part.bytes().all(|b| b.is_ascii_hexdigit());
    let mut parts = text.splitn(3, ':');
    let (Some(domain), Some(bus), Some(rest)) = (parts.next(), parts.next(), parts.next()) else { return false };
    rest.split_once('.').is_some_and(|(device, function)| hex(domain, 4) && hex(bus, 2) && hex(device, 2) && hex(function, 1))
}

/// The position of the device with this name. The device is not opened.
pub fn topology_of(name: &str) -> Topology {
    let Ok(path) = sysfs(name).join("device").canonicalize() else { return Topology::default() };
    // A device on another bus, such as an auxiliary one, is below its PCI function in the directory tree.
    let pci = path.ancestors().filter_map(|dir| dir.file_name()?.to_str()).find(|part| is_pci(part)).map(str::to_string);
    let numa = std::fs::read_to_string(path.join("numa_node")).ok().and_then(|text| text.trim().parse().ok());
    Topology { pci, numa, path: Some(path) }
}

impl Context {
    /// Opens the device of this name.
    pub fn open(name: &str) -> Result<Arc<Context>> {
        Self::open_of(&Devices::list()?, name)
    }

    /// Opens the device of this name from a list; for callers that open several devices of one list.
    pub fn open_of(list: &Devices, name: &str) -> Result<Arc<Context>> {
        let verbs = verbs()?;
        let Some((device, _)) = list.devices().find(|(_, found)| found == name) else {
            let names = list.names();
            return Err(Error::new(errno::ENODEV, format!("no RDMA device {name:?}; this host has: {}", names.join(" "))));
        };
        // SAFETY: a device of a list that lives.
        let (opened, transport) = unsafe { (verbs.ibv_open_device(device)?, (*device).transport_type) };
        let raw = pointer(opened, format_args!("opening RDMA device {name}"))?;
        // SAFETY: integers, for all of which zero is a valid value.
        let attr: ibv_device_attr = unsafe { std::mem::zeroed() };
        let transport = match transport {
            ibv_transport_type::IBV_TRANSPORT_IB => Transport::Ib,
            ibv_transport_type::IBV_TRANSPORT_IWARP => Transport::Iwarp,
            #[allow(clippy::unnecessary_cast)]
            other => Transport::Other(other as i32),
        };
        // From here on, dropping `context` closes the device.
        let mut context = Context {
            raw,
            name: name.to_string(),
            attr,
            transport,
            guid: 0,
            topology: topology_of(name),
            inline: OnceLock::new(),
            dmabuf: OnceLock::new(),
            odp: OnceLock::new(),
            gone: AtomicBool::new(false),
        };
        // SAFETY: the device is open, and there is room for its attributes.
        returned(unsafe { verbs.ibv_query_device(raw.as_ptr(), &mut context.attr)? }, format_args!("querying RDMA device {name}"))?;
        context.guid = u64::from_be(context.attr.node_guid);
        let nonblocking = rustix::fs::fcntl_getfl(context.async_fd())
            .and_then(|flags| rustix::fs::fcntl_setfl(context.async_fd(), flags | rustix::fs::OFlags::NONBLOCK));
        nonblocking.map_err(|e| Error::os(format_args!("making the event descriptor of {name} non-blocking"), e))?;
        Ok(Arc::new(context))
    }

    /// The raw context, which lives as long as `self`.
    pub fn raw(&self) -> *mut ibv_context {
        self.raw.as_ptr()
    }

    /// Readable when [`Context::poll_async`] has an event.
    pub fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the device.
        unsafe { BorrowedFd::borrow_raw((*self.raw()).async_fd) }
    }

    /// The next event of the device, its ports and its queues, if there is one. The descriptor of a removed device
    /// stays readable. A removal is reported once, as a fatal event of the device.
    pub fn poll_async(&self) -> Option<AsyncEvent> {
        // SAFETY: the device is open, and its descriptor does not block.
        let event = unsafe { AsyncEvent::next(self.raw()) }.unwrap_or_else(|_| Some(AsyncEvent::gone()));
        let end = event.as_ref().is_some_and(|event| event.kind == ibv_event_type::IBV_EVENT_DEVICE_FATAL);
        // Relaxed: the flag guards no other data.
        if end && self.gone.swap(true, Ordering::Relaxed) { None } else { event }
    }

    /// True once [`Context::poll_async`] has reported the end of the device.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    pub fn atomics(&self) -> Atomics {
        match self.attr.atomic_cap {
            ibv_atomic_cap::IBV_ATOMIC_NONE => Atomics::None,
            ibv_atomic_cap::IBV_ATOMIC_HCA => Atomics::Device,
            _ => Atomics::Global,
        }
    }

    /// On-demand paging, or the reason why it is unknown.
    pub fn odp(&self) -> Result<Odp> {
        let ask = || {
            // SAFETY: `self` keeps the device open.
            let caps = unsafe { extended::query_device(self.raw())? }.odp_caps;
            let (general, rc) = (caps.general_caps, caps.per_transport_caps.rc_odp_caps);
            Ok(Odp {
                supported: general & u64::from(ibv_odp_general_caps::IBV_ODP_SUPPORT) != 0,
                implicit: general & u64::from(ibv_odp_general_caps::IBV_ODP_SUPPORT_IMPLICIT) != 0,
                send: rc & odp::IBV_ODP_SUPPORT_SEND != 0,
                recv: rc & odp::IBV_ODP_SUPPORT_RECV != 0,
                write: rc & odp::IBV_ODP_SUPPORT_WRITE != 0,
                read: rc & odp::IBV_ODP_SUPPORT_READ != 0,
                atomic: rc & odp::IBV_ODP_SUPPORT_ATOMIC != 0,
            })
        };
        self.odp.get_or_init(ask).clone()
    }

    /// Checks that the device can register dma-bufs. The check offers the driver a descriptor that does not exist: a
    /// driver that looks the descriptor up before it refuses supports dma-bufs.
    pub fn dmabuf(&self) -> Result<()> {
        let probe = || {
            let verbs = verbs()?;
            // SAFETY: `self` keeps the device open.
            let pd = pointer(unsafe { verbs.ibv_alloc_pd(self.raw())? }, "allocating a protection domain")?;
            // SAFETY: the protection domain was just made; the descriptor is deliberately none.
            let tried = unsafe { verbs.ibv_reg_dmabuf_mr(pd.as_ptr(), 0, 4096, 0, -1, 0) };
            let err = last_errno();
            // SAFETY: both were made above. A registration without a descriptor would be a bug of the driver; it is given back.
            unsafe {
                if let Ok(mr) = tried.as_ref()
                    && !mr.is_null()
                {
                    verbs.ibv_dereg_mr(*mr)?;
                }
                verbs.ibv_dealloc_pd(pd.as_ptr())?;
            }
            match (tried?.is_null(), err) {
                (true, errno::EBADF | errno::EINVAL) | (false, _) => Ok(()),
                (true, err) => Err(call_error(format_args!("{} and dma-bufs", self.name), err)),
            }
        };
        self.dmabuf.get_or_init(probe).clone()
    }

    /// Reads and atomics of a peer that the device serves at once on one connection.
    pub fn reads_in(&self) -> u8 {
        self.attr.max_qp_rd_atom.clamp(1, 16) as u8
    }

    /// Reads and atomics that the device can have in flight on one connection.
    pub fn reads_out(&self) -> u8 {
        self.attr.max_qp_init_rd_atom.clamp(1, 16) as u8
    }

    pub fn ports(&self) -> impl Iterator<Item = Result<Port>> + '_ {
        (1..=self.attr.phys_port_cnt).map(|number| self.port(number))
    }

    /// True if traffic can flow through a port now.
    pub fn is_active(&self, port: u8) -> bool {
        // SAFETY: `self` keeps the device open.
        unsafe { extended::query_port(self.raw(), port) }.is_ok_and(|attr| attr.state == ibv_port_state::IBV_PORT_ACTIVE)
    }

    /// Reads the attributes of a port; `number` counts from 1.
    pub fn port(&self, number: u8) -> Result<Port> {
        if number == 0 || number > self.attr.phys_port_cnt {
            return Err(Error::invalid(format!("port {number} does not exist: {} has ports 1 to {}", self.name, self.attr.phys_port_cnt)));
        }
        // SAFETY: `self` keeps the device open.
        let attr = unsafe { extended::query_port(self.raw(), number) }.map_err(|e| e.context(&self.name))?;
        let link = if attr.link_layer == LINK_ETHERNET { LinkLayer::Ethernet } else { LinkLayer::InfiniBand };
        let dir = sysfs(&self.name);
        let source = GidTable {
            context: self.raw(),
            sysfs: &dir,
            port: number,
            entries: usize::try_from(attr.gid_tbl_len).unwrap_or(0) * usize::from(self.attr.phys_port_cnt),
            ethernet: link == LinkLayer::Ethernet,
            iwarp: self.transport == Transport::Iwarp,
        };
        let rate = std::fs::read_to_string(dir.join(format!("ports/{number}/rate"))).ok();
        Ok(Port {
            number,
            active: attr.state == ibv_port_state::IBV_PORT_ACTIVE,
            state: state_words(attr.state),
            lid: attr.lid,
            mtu: mtu_bytes(attr.active_mtu),
            link,
            speed: rate.as_deref().and_then(rate_in).unwrap_or_else(|| speed_of(attr.active_speed, attr.active_width)),
            max_message: attr.max_msg_sz,
            // SAFETY: `self` keeps the device open.
            gids: unsafe { source.read() }.map_err(|e| e.context(&self.name))?,
        })
    }
}

impl AsFd for Context {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.async_fd()
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: opened by `open_of`; every user of the device holds this object.
        let closed = verbs().and_then(|v| unsafe { v.ibv_close_device(self.raw()) }).and_then(|rc| returned(rc, "closing the device"));
        if let Err(e) = closed {
            crate::log!(Warn, "{}: {e}", self.name);
        }
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("name", &self.name).field("transport", &self.transport).finish_non_exhaustive()
    }
}

fn state_words(state: u32) -> &'static str {
    match state {
        ibv_port_state::IBV_PORT_DOWN => "down",
        ibv_port_state::IBV_PORT_INIT => "initialising",
        ibv_port_state::IBV_PORT_ARMED => "armed",
        ibv_port_state::IBV_PORT_ACTIVE => "active",
        ibv_port_state::IBV_PORT_ACTIVE_DEFER => "active, deferred",
        _ => "in an unknown state",
    }
}

/// `enum ibv_mtu` in bytes; 0 if unknown.
pub fn mtu_bytes(code: u32) -> u32 {
    if (1..=5).contains(&code) { 128 << code } else { 0 }
}

/// Bits per second for the codes `active_speed` (one bit per generation) and `active_width` (one bit per number of
/// lanes).
fn speed_of(speed: u8, width: u8) -> u64 {
    let lane = match speed {
        1 => 2_500,
        2 => 5_000,
        4 | 8 => 10_000,
        16 => 14_062,
        32 => 25_000,
        64 => 50_000,
        128 => 100_000,
        _ => 0,
    };
    let lanes = match width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 0,
    };
    lane * lanes * 1_000_000
}

/// Bits per second for a text in sysfs like "100 Gb/sec (4X EDR)". Newer kernels report link speeds there for which
/// `active_speed` has no code.
fn rate_in(text: &str) -> Option<u64> {
    let (number, unit) = text.trim().split_once(' ')?;
    if !unit.starts_with("Gb/sec") {
        return None;
    }
    let (whole, tenth) = number.split_once('.').unwrap_or((number, "0"));
    let tenth: u64 = tenth.get(..1)?.parse().ok()?;
    Some((whole.parse::<u64>().ok()?.checked_mul(10)? + tenth) * 100_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtu_codes() {
        assert_eq!([1, 2, 3, 4, 5].map(mtu_bytes), [256, 512, 1024, 2048, 4096]);
        assert_eq!((mtu_bytes(0), mtu_bytes(6)), (0, 0));
    }

    #[test]
    fn speeds() {
        assert_eq!(speed_of(32, 2), 100_000_000_000);
        assert_eq!(speed_of(128, 2), 400_000_000_000);
        assert_eq!(speed_of(64, 1), 50_000_000_000);
        assert_eq!(speed_of(0, 2), 0);
        assert_eq!(rate_in("100 Gb/sec (4X EDR)\n"), Some(100_000_000_000));
        assert_eq!(rate_in("2.5 Gb/sec (1X SDR)\n"), Some(2_500_000_000));
        assert_eq!(rate_in("800 Gb/sec (4X XDR)"), Some(800_000_000_000));
        assert_eq!(rate_in("unknown"), None);
        assert_eq!(rate_in("1. Gb/sec"), None);
    }

    #[test]
    fn pci_addresses() {
        assert!(is_pci("0000:3b:00.0"));
        assert!(is_pci("10000:00:02.1"));
        assert!(!is_pci("pci0000:00"));
        assert!(!is_pci("virtio0"));
        assert!(!is_pci("mlx5_core.rdma.0"));
    }

    #[test]
    fn an_unknown_device_is_named() {
        if let Err(e) = Context::open("no-such-device") {
            assert!(e.words.contains("no-such-device") || e.errno == errno::ENOSYS || e.words.contains("listing"), "{e}");
        }
    }
}
