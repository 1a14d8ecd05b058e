// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Identifiers of rdma_cm (connections and listeners), with a safe interface.
//!
//! librdmacm is used for addresses and handshakes only. This library makes the queue pairs on its own contexts, so
//! `id->qp` stays null. The states of the queue pairs follow the events:
//!
//! - active side: resolve -> AddrResolved -> resolve_route -> RouteResolved -> connect (with the number of this side's queue pair) ->
//!   ConnectResponse -> queue pair to RTR and RTS by [`Id::qp_attr`] -> establish;
//! - passive side: ConnectRequest -> [`Id::migrate`] -> queue pair to INIT, RTR and RTS -> accept -> Established;
//! - iWARP: the queue pair goes to INIT only, and the kernel makes the other transitions. Both sides get Established.
//!   If there is no listener, connect itself may fail.
//!
//! librdmacm writes into an identifier while it reads the events of that identifier. So a caller that reads a channel
//! in one thread and uses its identifiers in another must hold one lock for both.

use super::abi::{ibv_qp_attr, rdma_cm_id, rdma_conn_param, rdma_port_space};
use super::cm_channel::Channel;
use super::entry_points::Cm;
use super::library::cm;
use super::status::{pointer, returned};
use crate::error::{Error, Result};
use std::ffi::{CStr, c_int};
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// An identifier: one connection, or one listener.
pub struct Id {
    raw: NonNull<rdma_cm_id>,
    // Declared after `raw`, because the identifier reports to the channel until the identifier is destroyed.
    _channel: Arc<Channel>,
}

// SAFETY: librdmacm may be called from any thread.
unsafe impl Send for Id {}

/// The parameters that one side gives for a connection. All others are negotiated.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConnParam<'a> {
    /// At most 56 bytes with a request on InfiniBand and RoCE, more elsewhere.
    pub private_data: &'a [u8],
    /// Reads and atomics of the peer that this side serves at once.
    pub responder_resources: u8,
    /// Reads and atomics that this side has in flight at once.
    pub initiator_depth: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub qpn: u32,
}

/// A socket address in C's form.
fn storage(at: SocketAddr) -> libc::sockaddr_storage {
    // SAFETY: integers, for all of which zero is a valid value.
    let mut out: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let to = &raw mut out;
    match at {
        SocketAddr::V4(v4) => {
            let address = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from(*v4.ip()).to_be() },
                sin_zero: [0; 8],
            };
            // SAFETY: the storage has room and alignment for any socket address.
            unsafe { to.cast::<libc::sockaddr_in>().write(address) };
        }
        SocketAddr::V6(v6) => {
            let address = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: the storage has room and alignment for any socket address.
            unsafe { to.cast::<libc::sockaddr_in6>().write(address) };
        }
    }
    out
}

/// The IP address and port of a socket address in C's form, if it has one.
fn address_in(from: &libc::sockaddr_storage) -> Option<SocketAddr> {
    let at = &raw const *from;
    match i32::from(from.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says that it is this type, and the storage has room for any.
            let v4 = unsafe { at.cast::<libc::sockaddr_in>().read() };
            Some(SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)), u16::from_be(v4.sin_port))))
        }
        libc::AF_INET6 => {
            // SAFETY: the family says that it is this type, and the storage has room for any.
            let v6 = unsafe { at.cast::<libc::sockaddr_in6>().read() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            Some(SocketAddr::V6(SocketAddrV6::new(ip, u16::from_be(v6.sin6_port), v6.sin6_flowinfo, v6.sin6_scope_id)))
        }
        _ => None,
    }
}

/// The option level `RDMA_OPTION_ID` and its options.
const LEVEL_ID: c_int = 0;
const REUSEADDR: c_int = 1;
const ACK_TIMEOUT: c_int = 3;

impl Id {
    /// An identifier for a reliable connection.
    pub fn new(channel: &Arc<Channel>) -> Result<Id> {
        let mut raw = null_mut();
        // SAFETY: the channel lives; the call writes the identifier on success.
        let rc = unsafe { cm()?.rdma_create_id(channel.raw(), &mut raw, null_mut(), rdma_port_space::RDMA_PS_TCP)? };
        returned(rc, "creating an rdma_cm identifier")?;
        Ok(Id { raw: pointer(raw, "creating an rdma_cm identifier")?, _channel: channel.clone() })
    }

    /// Takes ownership of the identifier of a connection request, which reports to `channel`.
    ///
    /// # Safety
    /// No other object owns the identifier.
    pub(in crate::prov::verbs) unsafe fn adopt(raw: NonNull<rdma_cm_id>, channel: &Arc<Channel>) -> Id {
        Id { raw, _channel: channel.clone() }
    }

    /// A number that differs from the number of every other living identifier. Events contain this number.
    pub fn number(&self) -> usize {
        self.raw.as_ptr().addr()
    }

    fn call(&self, doing: impl fmt::Display, call: impl FnOnce(&Cm, *mut rdma_cm_id) -> Result<c_int>) -> Result<()> {
        returned(call(cm()?, self.raw.as_ptr())?, doing)
    }

    pub fn bind(&self, at: SocketAddr) -> Result<()> {
        let mut address = storage(at);
        // SAFETY: `self` owns the identifier; the address is as long as its family says.
        self.call(format_args!("binding rdma_cm to {at}"), |cm, id| unsafe { cm.rdma_bind_addr(id, (&raw mut address).cast()) })
    }

    pub fn listen(&self, backlog: i32) -> Result<()> {
        // SAFETY: `self` owns the identifier.
        self.call("listening with rdma_cm", |cm, id| unsafe { cm.rdma_listen(id, backlog) })
    }

    /// Starts to find the local device and the peer's link address; AddrResolved or AddrError follows.
    pub fn resolve(&self, from: Option<SocketAddr>, to: SocketAddr, timeout_ms: i32) -> Result<()> {
        let (mut from, mut dest) = (from.map(storage), storage(to));
        let src = from.as_mut().map_or(null_mut(), |from| (&raw mut *from).cast());
        let doing = format_args!("resolving {to} with rdma_cm");
        // SAFETY: `self` owns the identifier; the addresses are as long as their families say, or null.
        self.call(doing, |cm, id| unsafe { cm.rdma_resolve_addr(id, src, (&raw mut dest).cast(), timeout_ms) })
    }

    /// Starts to find the route to the peer; RouteResolved or RouteError follows.
    pub fn resolve_route(&self, timeout_ms: i32) -> Result<()> {
        // SAFETY: `self` owns the identifier.
        self.call("resolving the route with rdma_cm", |cm, id| unsafe { cm.rdma_resolve_route(id, timeout_ms) })
    }

    fn with_param(
        &self,
        doing: &'static str,
        param: &ConnParam<'_>,
        call: impl FnOnce(&Cm, *mut rdma_cm_id, *mut rdma_conn_param) -> Result<c_int>,
    ) -> Result<()> {
        let mut raw = rdma_conn_param {
            private_data: param.private_data.as_ptr().cast(),
            private_data_len: private_len(param.private_data)?,
            responder_resources: param.responder_resources,
            initiator_depth: param.initiator_depth,
            flow_control: 1,
            retry_count: param.retry_count,
            rnr_retry_count: param.rnr_retry_count,
            srq: 0,
            qp_num: param.qpn,
        };
        self.call(doing, |cm, id| call(cm, id, &mut raw))
    }

    /// Sends the connection request; ConnectResponse (or Established), Rejected, Unreachable or ConnectError follows.
    pub fn connect(&self, param: &ConnParam<'_>) -> Result<()> {
        // SAFETY: `self` owns the identifier; the data of the parameters lives during the call, which copies it.
        self.with_param("connecting with rdma_cm", param, |cm, id, raw| unsafe { cm.rdma_connect(id, raw) })
    }

    /// Accepts a connection request; Established follows.
    pub fn accept(&self, param: &ConnParam<'_>) -> Result<()> {
        // SAFETY: `self` owns the identifier; the data of the parameters lives during the call, which copies it.
        self.with_param("accepting with rdma_cm", param, |cm, id, raw| unsafe { cm.rdma_accept(id, raw) })
    }

    pub fn reject(&self, private_data: &[u8]) -> Result<()> {
        let len = private_len(private_data)?;
        // SAFETY: `self` owns the identifier, and the data has `len` bytes.
        self.call("rejecting with rdma_cm", |cm, id| unsafe { cm.rdma_reject(id, private_data.as_ptr().cast(), len) })
    }

    /// Tells the peer that this side's queue pair is ready as well.
    pub fn establish(&self) -> Result<()> {
        // SAFETY: `self` owns the identifier, which has no queue pair of librdmacm.
        self.call("establishing with rdma_cm", |cm, id| unsafe { cm.rdma_establish(id) })
    }

    /// Ends the connection. The peer gets Disconnected and answers with the same call; only then does this side get
    /// Disconnected.
    pub fn disconnect(&self) -> Result<()> {
        // SAFETY: `self` owns the identifier.
        self.call("disconnecting with rdma_cm", |cm, id| unsafe { cm.rdma_disconnect(id) })
    }

    /// Makes the identifier report to another channel from now on. Events that wait move to that channel too.
    pub fn migrate(&mut self, channel: &Arc<Channel>) -> Result<()> {
        // SAFETY: `self` owns the identifier, and both channels live.
        self.call("moving an rdma_cm identifier", |cm, id| unsafe { cm.rdma_migrate_id(id, channel.raw()) })?;
        self._channel = channel.clone();
        Ok(())
    }

    /// The attributes that the queue pair needs for this `ibv_qp_state`, and the mask that names these attributes
    /// (`ibv_qp_attr_mask`). Over iWARP only INIT has a meaning, because the kernel makes the other transitions.
    pub fn qp_attr(&self, state: u32) -> Result<(ibv_qp_attr, i32)> {
        // SAFETY: integers, for all of which zero is a valid value.
        let mut attr: ibv_qp_attr = unsafe { std::mem::zeroed() };
        attr.qp_state = state;
        let mut mask = 0;
        let doing = format_args!("asking rdma_cm for the attributes of queue pair state {state}");
        // SAFETY: `self` owns the identifier, and there is room for both results.
        self.call(doing, |cm, id| unsafe { cm.rdma_init_qp_attr(id, &mut attr, &mut mask) })?;
        Ok((attr, mask))
    }

    fn set<T>(&self, doing: &'static str, name: c_int, mut value: T) -> Result<()> {
        // SAFETY: `self` owns the identifier, and the value has the size of the option's type.
        self.call(doing, |cm, id| unsafe { cm.rdma_set_option(id, LEVEL_ID, name, (&raw mut value).cast(), size_of::<T>()) })
    }

    /// Allows binding to a port whose last user is in TIME_WAIT.
    pub fn set_reuse_address(&self) -> Result<()> {
        self.set::<c_int>("setting RDMA_OPTION_ID_REUSEADDR", REUSEADDR, 1)
    }

    /// Sets the acknowledgement timeout of the queue pair to 4.096 us << `exponent`. The caller calls this function
    /// before connect or accept.
    pub fn set_ack_timeout(&self, exponent: u8) -> Result<()> {
        self.set::<u8>("setting RDMA_OPTION_ID_ACK_TIMEOUT", ACK_TIMEOUT, exponent)
    }

    /// The name of the device, once the identifier is bound to a device.
    pub fn device(&self) -> Option<String> {
        // SAFETY: `self` owns the identifier; its context and device live as long as librdmacm, which keeps them open.
        unsafe {
            let context = (*self.raw.as_ptr()).verbs;
            if context.is_null() {
                return None;
            }
            let device = (*context).device;
            if device.is_null() { None } else { Some(CStr::from_ptr((&raw const (*device).name).cast()).to_string_lossy().into_owned()) }
        }
    }

    /// The port of the device; 0 before the identifier is bound to a device.
    pub fn port(&self) -> u8 {
        // SAFETY: `self` owns the identifier.
        unsafe { (*self.raw.as_ptr()).port_num }
    }

    /// The address of this side, with the chosen port number.
    pub fn local(&self) -> Option<SocketAddr> {
        // SAFETY: `self` owns the identifier; the address is copied.
        address_in(unsafe { &(*self.raw.as_ptr()).route.addr.src_storage })
    }

    pub fn peer(&self) -> Option<SocketAddr> {
        // SAFETY: `self` owns the identifier; the address is copied.
        address_in(unsafe { &(*self.raw.as_ptr()).route.addr.dst_storage })
    }
}

fn private_len(data: &[u8]) -> Result<u8> {
    u8::try_from(data.len())
        .map_err(|_| Error::invalid(format!("private data: {} bytes, at most 255 fit (56 with InfiniBand)", data.len())))
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Id({:#x})", self.number())
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY: `self` owns the identifier, its events are all acknowledged, and it is destroyed once, here.
        let gone = cm().and_then(|cm| unsafe { cm.rdma_destroy_id(self.raw.as_ptr()) });
        if let Err(e) = gone.and_then(|rc| returned(rc, "destroying an rdma_cm identifier")) {
            crate::log!(Warn, "{e}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_addresses_survive_the_round_trip() {
        for text in ["192.0.2.1:7471", "[2001:db8::1]:1", "[fe80::1%3]:65535"] {
            let at: SocketAddr = text.parse().expect("an address");
            assert_eq!(address_in(&storage(at)), Some(at));
        }
        // SAFETY: integers, for all of which zero is a valid value.
        assert_eq!(address_in(&unsafe { std::mem::zeroed() }), None);
    }

    #[test]
    fn private_data_is_bounded() {
        assert_eq!(private_len(&[0; 255]).ok(), Some(255));
        assert!(private_len(&[0; 256]).is_err());
    }
}
