// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/monitor"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/linux/conntrack"
	"github.com/tandem-proxy/tandem/linux/host"
	"github.com/tandem-proxy/tandem/linux/ipvs"
)

// kernelConnections are the connections that conntrack sees begin: a monitor.Source.
type kernelConnections struct{ *conntrack.Beginnings }

// watchKernel implements system.watch.
func watchKernel(mode dataplane.Mode) (_ monitor.Source, notShown []string, err error) {
	begin, err := conntrack.OpenBeginnings(mode.Unmarked)
	if err != nil {
		return nil, nil, err
	}
	notShown = []string{"connections to node ports on loopback addresses, which relays serve", "packets that are rejected or dropped"}
	if tracked, err := host.Sysctl("net/ipv4/vs/conntrack"); mode.Name == ipvs.Name && err == nil && tracked == "0" {
		notShown = append(notShown, "connections by IPVS: they are not tracked while sysctl net.ipv4.vs.conntrack is 0")
	}
	return kernelConnections{begin}, notShown, nil
}

// Look implements monitor.Source.
func (k kernelConnections) Look(each func(monitor.Seen)) (more bool, err error) {
	now := time.Now()
	return k.Beginnings.Look(monitor.Read, func(f conntrack.NewFlow) {
		each(monitor.Seen{At: now, Proto: f.Proto, Client: f.Src, To: f.Dst, Fate: oracle.Forward, Endpoint: f.To})
	})
}
