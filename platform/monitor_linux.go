// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/monitor"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/linux/conntrack"
	"github.com/tandem-proxy/tandem/linux/host"
	"github.com/tandem-proxy/tandem/linux/ipvs"
	"github.com/tandem-proxy/tandem/linux/nft"
)

// kernelConnections are the connections that conntrack sees begin, and the packets that rules of nf_tables reject: a monitor.Source.
type kernelConnections struct {
	begin    *conntrack.Beginnings
	rejected *nft.Rejections // nil where nf_tables does not show them
}

var _ monitor.Tracer = (*kernelConnections)(nil)

// watchKernel implements system.watch.
func watchKernel(mode dataplane.Mode) (_ monitor.Source, notShown []string, err error) {
	k := &kernelConnections{}
	if k.begin, err = conntrack.OpenBeginnings(mode.Unmarked); err != nil {
		return nil, nil, err
	}
	notShown = []string{"node ports on loopback addresses"}
	untracked := false
	if tracked, err := host.Sysctl("net/ipv4/vs/conntrack"); mode.Name == ipvs.Name && err == nil && tracked == "0" {
		untracked = true
		notShown = append(notShown, "connections by IPVS, which are not tracked while sysctl net.ipv4.vs.conntrack is 0")
	}
	by := nft.AllReport
	switch rules := reported(mode); {
	case !rules && untracked: // those that IPVS forwards would look like rejected ones
		return k, append(notShown, "rejected packets, which rules of iptables-legacy do not report, and the same sysctl"), nil
	case !rules:
		by, notShown = nft.NoneReport, append(notShown, "the rules of iptables-legacy that reject packets")
	case untracked:
		notShown = append(notShown, "packets that IPVS itself rejects")
	case mode.Name == ipvs.Name:
		by = nft.RulesDo
	}
	if k.rejected, err = nft.OpenRejections(by); err != nil {
		return k, append(notShown, "rejected packets: "+err.Error()), nil
	}
	return k, append(notShown, fmt.Sprintf("rejected packets beyond %d a second in a namespace, and those to ports that no Service has", nft.TracedEach)), nil
}

// reported reports whether the rules of a mode are in nf_tables, which reports those that a packet meets.
func reported(mode dataplane.Mode) bool {
	table := "nat" // of iptables-nft
	if mode.Name == ipvs.Name {
		table = "mangle"
	}
	return mode.Name == config.NFTables || nft.HasChain(context.Background(), table, "KUBE-SERVICES")
}

func (k *kernelConnections) Look(each func(monitor.Seen)) (more bool, err error) {
	now := time.Now()
	more, err = k.begin.Look(monitor.Read, func(f conntrack.NewFlow) {
		each(monitor.Seen{At: now, Proto: f.Proto, Client: f.Src, To: f.Dst, Fate: oracle.Forward, Endpoint: f.To})
	})
	if err != nil || k.rejected == nil {
		return more, err
	}
	lost, err := k.rejected.Look(context.Background(), monitor.Read, func(r nft.Rejected) {
		s := monitor.Seen{At: now, Proto: r.Proto, Client: r.Src, To: r.Dst, Fate: oracle.Reject, Rule: r.Rule}
		if s.Lost = r.Verdict == ""; s.Lost || strings.EqualFold(r.Verdict, oracle.Drop.String()) {
			s.Fate = oracle.Drop
		}
		if r.Iface != 0 {
			s.Iface = interfaceName(int(r.Iface))
		}
		each(s)
	})
	return more || lost, err
}

// interfaceName is that of an interface that a packet came by; one that is not known is no pod's.
func interfaceName(index int) string {
	if i, err := net.InterfaceByIndex(index); err == nil {
		return i.Name
	}
	return oracle.Uplink
}

func (k *kernelConnections) Trace(ctx context.Context, all []monitor.Frontend) error {
	if k.rejected == nil {
		return nil
	}
	return k.rejected.Trace(ctx, all)
}

func (k *kernelConnections) Close() error {
	err := k.begin.Close()
	if k.rejected != nil {
		err = errors.Join(err, k.rejected.Close())
	}
	return err
}
