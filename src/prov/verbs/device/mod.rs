// SPDX-License-Identifier: Apache-2.0 OR MIT
//! RDMA devices of this host, their ports, and the verbs objects that are made with them.
//!
//! `context.rs` opens a device and asks it and its ports for their attributes; read it first. `gid.rs` reads the addresses of a
//! port, with the help of `netdev.rs`, which lists the network interfaces of the host. `distance.rs` tells how far a NIC is from an
//! accelerator, and `inline.rs` finds out how many bytes a work request can carry itself. `rail_names.rs` parses the ports that
//! `GDRFAB_VERBS_RAILS` names. `object.rs` owns protection domains, completion queues and memory registrations: each is destroyed
//! when it is dropped, and keeps alive the object that it was made from.
//!
//! Names and numbers come in, open devices and owned objects go out. The rooms above (`memory`, `queue`, `state`) use the objects.

pub mod context;
pub mod distance;
pub mod gid;
pub(in crate::prov::verbs) mod inline;
pub mod netdev;
pub(in crate::prov::verbs) mod object;
pub(in crate::prov::verbs) mod rail_names;
