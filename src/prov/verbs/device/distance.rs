// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The distance of a NIC from an accelerator or another NIC. The distance follows from the common part of their
//! directories under /sys/devices.

use super::context::{self, Topology};
use crate::prov::info::Near;
use std::path::{Path, PathBuf};

/// The distance between two devices, the shortest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Distance {
    /// The devices are below one PCIe switch or root port, with `hops` bridges and devices between them.
    Switch { hops: u32 },
    /// The path leads through one root complex.
    RootComplex,
    /// The path leads from one root complex to another in the same NUMA node.
    Node,
    /// The path leads from one NUMA node to another, or is unknown.
    #[default]
    System,
}

impl From<Distance> for Near {
    fn from(distance: Distance) -> Near {
        match distance {
            Distance::Switch { .. } => Near::Switch,
            Distance::RootComplex => Near::RootComplex,
            Distance::Node => Near::Node,
            Distance::System => Near::Far,
        }
    }
}

/// The root complex above a device, and the PCI addresses from the root port down to the device.
fn chain(path: &Path) -> (Option<&str>, Vec<&str>) {
    let parts = || path.iter().filter_map(|part| part.to_str());
    (parts().find(|part| part.starts_with("pci") && part.contains(':')), parts().filter(|part| context::is_pci(part)).collect())
}

/// The distance of two devices by their positions.
pub fn between(a: &Topology, b: &Topology) -> Distance {
    if let (Some(a), Some(b)) = (&a.path, &b.path) {
        let ((root_a, way_a), (root_b, way_b)) = (chain(a), chain(b));
        if root_a.is_some() && root_a == root_b {
            let shared = way_a.iter().zip(&way_b).take_while(|(a, b)| a == b).count();
            return match shared {
                0 => Distance::RootComplex,
                n => Distance::Switch { hops: (way_a.len() + way_b.len() - 2 * n) as u32 },
            };
        }
    }
    match (a.numa, b.numa) {
        (Some(a), Some(b)) if a == b => Distance::Node,
        _ => Distance::System,
    }
}

/// The position of the function with this PCI address.
pub fn of_pci(pci: &str) -> Topology {
    let Ok(path) = PathBuf::from("/sys/bus/pci/devices").join(pci.to_ascii_lowercase()).canonicalize() else {
        return Topology { pci: Some(pci.to_string()), ..Topology::default() };
    };
    let numa = std::fs::read_to_string(path.join("numa_node")).ok().and_then(|text| text.trim().parse().ok());
    Topology { pci: Some(pci.to_string()), path: Some(path), numa }
}

/// The distance of the device with this name from the position `there`, if that is given.
pub fn of_device(name: &str, there: Option<&Topology>) -> Option<Distance> {
    there.map(|there| between(&context::topology_of(name), there))
}

/// The sort key of devices: the distance, then the name in counting order.
pub fn order(name: &str, there: Option<&Topology>) -> impl Ord + use<> {
    let (stem, number, len) = counted(name);
    (of_device(name, there), stem.to_string(), number, len)
}

/// The parts of a name by which names sort in counting order: mlx5_2 before mlx5_10.
fn counted(name: &str) -> (&str, u64, usize) {
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    (stem, name[stem.len()..].parse().unwrap_or(0), name.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(path: &str, numa: Option<u32>) -> Topology {
        Topology { pci: None, path: Some(path.into()), numa }
    }

    const GPU: &str = "/sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:19:00.0";

    fn from_gpu(nic: &str, numa: Option<u32>) -> Distance {
        let (gpu, nic) = (place(GPU, Some(0)), place(nic, numa));
        assert_eq!(between(&gpu, &nic), between(&nic, &gpu));
        between(&gpu, &nic)
    }

    #[test]
    fn the_deepest_common_ancestor_decides() {
        let beside = "/sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0";
        let deeper = "/sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:02.0/0000:1a:00.0/0000:1b:00.0/0000:1c:00.0";
        let other_port = "/sys/devices/pci0000:15/0000:15:03.0/0000:30:00.0";
        let other_root = "/sys/devices/pci0000:40/0000:40:01.0/0000:41:00.0";
        let other_domain = "/sys/devices/pci0001:15/0001:15:01.0/0001:16:00.0";
        let order = [
            from_gpu(beside, Some(0)),
            from_gpu(deeper, Some(0)),
            from_gpu(other_port, Some(0)),
            from_gpu(other_root, Some(0)),
            from_gpu(other_domain, Some(1)),
        ];
        assert_eq!(
            order,
            [Distance::Switch { hops: 4 }, Distance::Switch { hops: 6 }, Distance::RootComplex, Distance::Node, Distance::System]
        );
        assert!(order.is_sorted());
    }

    #[test]
    fn a_device_on_another_bus_below_its_function_counts_as_that_function() {
        let auxiliary = "/sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0/mlx5_core.rdma.0";
        assert_eq!(from_gpu(auxiliary, Some(0)), Distance::Switch { hops: 4 });
        assert_eq!(from_gpu(GPU, None), Distance::Switch { hops: 0 }, "itself");
    }

    #[test]
    fn a_device_without_a_position_is_far_unless_its_node_is_known() {
        assert_eq!(from_gpu("/sys/devices/virtual/net/eth0", None), Distance::System);
        assert_eq!(from_gpu("/sys/devices/virtual/net/eth0", Some(0)), Distance::Node);
        assert_eq!(between(&Topology::default(), &Topology::default()), Distance::System);
        assert_eq!(of_pci("ffff:ff:1f.7").path, None);
    }

    #[test]
    fn names_are_counted() {
        let mut names = ["mlx5_10", "rxe0", "mlx5_2", "mlx5_bond", "mlx5_0"];
        names.sort_by_key(|name| counted(name));
        assert_eq!(names, ["mlx5_0", "mlx5_2", "mlx5_10", "mlx5_bond", "rxe0"]);
    }
}
