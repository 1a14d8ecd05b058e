// SPDX-License-Identifier: Apache-2.0 OR MIT
//! RDMA devices of this host, their ports, and the verbs objects that are made with them.
//!
//! `context.rs` opens a device and reads the attributes of the device and its ports; read it first. `gid.rs` reads the
//! addresses of a port, with the help of `netdev.rs`, which lists the network interfaces of the host. `distance.rs`
//! tells how far a NIC is from an accelerator. `inline.rs` finds out how many bytes can travel inside a work request.
//! `rail_names.rs` parses the ports in `GDRFAB_VERBS_RAILS`. `object.rs` owns protection domains, completion queues and
//! memory registrations: each object is destroyed when it is dropped, and keeps the object alive from which it was
//! made.
//!
//! Names and numbers come in; open devices and owned objects go out. The folders above (`memory`, `queue`, `state`) use
//! the objects.

pub mod context;
pub mod distance;
pub mod gid;
pub(in crate::prov::verbs) mod inline;
pub mod netdev;
pub(in crate::prov::verbs) mod object;
pub(in crate::prov::verbs) mod rail_names;
