// SPDX-License-Identifier: Apache-2.0

package main

func benches() []bench {
	return []bench{nftables(), manifests(), iptablesVariant("legacy"), iptablesVariant("nft"), userspace(), ipvsMode(), kubernetesBench(), fleetBench(), alone(), queries(), scale(), recheck(), counters(), round(), starts()}
}
