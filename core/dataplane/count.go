package dataplane

import "github.com/tandem-proxy/tandem/core/model"

// RuleCounter is implemented by backends that program rules of iptables, for the
// metrics that kube-proxy has of them. It is used like a Backend.
type RuleCounter interface {
	// Rules tells for each table of each family how many rules of ours it has, and
	// how many were written since the last call.
	Rules(tell func(table string, f model.Family, total, written int))
}

// PacketCounter is implemented by backends whose rules count packets, for the
// metrics that kube-proxy has of them in its iptables mode.
type PacketCounter interface {
	// Packets returns what was counted until now, or a short while ago where it
	// takes long to know. It never gets less as long as the backend is open. It may
	// be called from any goroutine at any time, also after Close.
	Packets() Packets
}

// Packets are numbers of packets.
type Packets struct {
	Invalid   uint64 // dropped, as connection tracking makes no sense of them
	Localhost uint64 // the first ones of connections to node ports on 127.0.0.0/8
}
