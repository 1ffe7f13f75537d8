package ipvs

import (
	"net/netip"

	"github.com/tandem-proxy/tandem/core/model"
)

// Options are the settings of this data plane.
type Options struct {
	// Mark is the bit of the packet mark that says "masquerade"; 0 means
	// DefaultMark.
	Mark uint32
	// Families are those to serve; none means both. Ports of another family are
	// a Gap.
	Families []model.Family
	// Scheduler is the kernel's scheduler for all virtual servers; empty is rr.
	Scheduler string
	// NoRandomFully says that this iptables cannot choose the source ports of
	// masqueraded connections at random.
	NoRandomFully bool
}

func (o Options) families() []model.Family {
	if len(o.Families) > 0 {
		return o.Families
	}
	both := model.Families()
	return both[:]
}

func (o Options) scheduler() string {
	if o.Scheduler == "" {
		return "rr"
	}
	return o.Scheduler
}

// portCompiler compiles one port.
type portCompiler struct {
	options Options
	marks   marks
	host    *model.Host
	port    *model.Port
	emit    func(Key, Value)
	gaps    []model.Gap
	places  []place
	byMark  [2]byMark // without SNAT, and with
}

// place is a front at one address: a node port has one for each address of the
// host.
type place struct {
	*model.Frontend
	at netip.AddrPort
}

// byMark is a virtual server by mark, which all fronts of a port share.
type byMark struct {
	pool *model.Pool
	at   netip.AddrPort // its name: the lowest front that leads there
}

func (p *portCompiler) key(kind Kind, at netip.AddrPort) Key {
	return Key{Kind: kind, Family: p.port.ID.Family, Proto: p.port.ID.Proto, At: at}
}

func (p *portCompiler) gap(f *model.Frontend, detail string) {
	p.gaps = append(p.gaps, model.Gap{Frontend: f.At, Detail: detail})
}

// emitPrefix emits entries that cover a prefix: ipsets have none of length 0.
func emitPrefix(k Key, p netip.Prefix, emit func(Key, Value)) {
	if p.Bits() > 0 {
		k.To, k.Bits = netip.AddrPortFrom(p.Masked().Addr(), 0), uint8(p.Bits())
		emit(k, Value{})
		return
	}
	for _, half := range halves(model.FamilyOf(p.Addr())) {
		emitPrefix(k, half, emit)
	}
}

func halves(f model.Family) [2]netip.Prefix {
	if f == model.IPv4 {
		return [2]netip.Prefix{netip.MustParsePrefix("0.0.0.0/1"), netip.MustParsePrefix("128.0.0.0/1")}
	}
	return [2]netip.Prefix{netip.MustParsePrefix("::/1"), netip.MustParsePrefix("8000::/1")}
}
