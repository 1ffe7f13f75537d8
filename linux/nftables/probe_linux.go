package nftables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/netlink"
)

// Probe finds out whether this kernel can do what we need, by doing it in
// scratch tables that meet no packet: the same sets, maps and rules, and an
// element of each kind. With no families it tries both. The error says what is
// missing and what to do about it; a foreign table of our name is one. Any number
// of processes may probe at once.
func Probe(ctx context.Context, families ...model.Family) error {
	o := Options{Families: families}
	return Try(ctx, Table, probeObjects(o), o.families()...)
}

// Try is Probe for any objects, and the name of the tables that they are for.
func Try(ctx context.Context, table string, objects map[Key]Value, families ...model.Family) error {
	o := Options{Families: families}
	if err := Check(table, o.families()...); err != nil {
		return advise(err)
	}
	d, err := open(scratchName(time.Now()), o)
	if err != nil {
		return advise(err)
	}
	defer d.Close()
	if err := d.sweep(ctx, time.Now()); err != nil {
		return advise(err)
	}
	ops := probeOps(objects)
	for _, err := range d.Commit(ctx, ops) {
		if err != nil {
			return advise(err)
		}
	}
	have, err := d.Objects(ctx)
	if removed := d.removeTables(context.WithoutCancel(ctx)); removed != nil || err != nil {
		return advise(errors.Join(err, removed))
	}
	for _, op := range ops {
		if v, ok := have[op.Key]; !ok || !v.equal(op.New) {
			return fmt.Errorf("nftables: %s: %w: Linux 5.10 or later is needed", op.Key, errAltered)
		}
	}
	return nil
}

var errAltered = errors.New("the kernel does not give it back as it was written")

// Scratch tables are named by when they were made, and by chance, as others may
// probe at the same time. A process id would tell nothing: two containers on one
// network may both be process 1.
const scratchPrefix = Table + "-probe-"

// scratchLife is far more than what a probe takes. What is older was left by a
// process that was killed, and what is newer than now by one with another clock.
const scratchLife = time.Minute

func scratchName(now time.Time) string {
	return fmt.Sprintf("%s%d-%08x", scratchPrefix, now.Unix(), rand.Uint32())
}

// abandoned reports whether a table is a scratch table that nobody works on.
func abandoned(name, comment string, now time.Time) bool {
	rest, ok := strings.CutPrefix(name, scratchPrefix)
	if !ok || !strings.HasPrefix(comment, tableOwner) {
		return false
	}
	made, _, _ := strings.Cut(rest, "-")
	seconds, err := strconv.ParseInt(made, 10, 64)
	return err == nil && now.Sub(time.Unix(seconds, 0)).Abs() > scratchLife
}

// sweep deletes abandoned scratch tables, of any family.
func (d *Driver) sweep(ctx context.Context, now time.Time) error {
	left := map[string]bool{}
	err := request(ctx, d.sock, msgGetTable, netlink.FlagDump, unix.AF_UNSPEC, nil, func(m netlink.Message) error {
		if name, comment, _ := parseTable(m); messageOf(m) == msgNewTable && abandoned(name, comment, now) {
			left[name] = true
		}
		return nil
	})
	if err != nil && !errors.Is(err, dataplane.ErrInterrupted) { // then the next probe does the rest
		return fmt.Errorf("nftables: list tables: %w", err)
	}
	for name := range left {
		both := model.Families()
		scratch := &Driver{table: name, owner: tableOwner, families: both[:], reader: d.reader, sock: d.sock, batch: newBatch(name), lost: true}
		if err := scratch.removeTables(ctx); err != nil {
			return err
		}
	}
	return nil
}

// probeOps make objects, in chains that no packet enters.
func probeOps(objects map[Key]Value) (ops []op) {
	for _, k := range slices.SortedFunc(maps.Keys(objects), compareKeys) {
		v := objects[k]
		if v.Body != nil && v.Body.Chain != nil && v.Body.Chain.Hook.Type != "" {
			v = Value{Body: &Body{Chain: shut(k.Family, v.Body.Chain)}}
		}
		ops = append(ops, op{Verb: ledger.Create, Key: k, New: v})
	}
	return ops
}

// probeObjects are the skeleton, and a port in it.
func probeObjects(o Options) map[Key]Value {
	c := NewCompiler(o)
	objects := map[Key]Value{}
	emit := func(k Key, v Value) { objects[k] = v }
	host := &model.Host{}
	for _, f := range o.families() {
		addr := netip.MustParseAddr([...]string{model.IPv4: "192.0.2.1", model.IPv6: "2001:db8::1"}[f])
		host.NodePorts.Prefixes = append(host.NodePorts.Prefixes, netip.PrefixFrom(addr, addr.BitLen()))
		for _, sticky := range []time.Duration{0, time.Hour} {
			c.Port(host, probePort(addr, sticky), emit)
		}
	}
	c.Base(host, emit)
	return objects
}

// shut puts a match in front of all rules that no packet passes: protocol 255
// is reserved.
func shut(f model.Family, c *Chain) *Chain {
	var rules []Rule
	for _, r := range c.Rules {
		rules = append(rules, rule(append([]Statement{ProtocolIs{255}}, r.Statements...)...))
	}
	return newChain(f, c.Hook, rules)
}

func probePort(addr netip.Addr, sticky time.Duration) *model.Port {
	at := netip.AddrPortFrom(addr, 80)
	if sticky > 0 {
		at = netip.AddrPortFrom(addr, 81)
	}
	pool := &model.Pool{Endpoints: []model.Endpoint{{Addr: at, Local: true}, {Addr: netip.AddrPortFrom(addr, 82)}}}
	act := model.Action{Pool: pool}
	return &model.Port{
		ID:              model.PortID{Service: model.ServiceName{Namespace: "tandem", Name: "probe"}, Proto: model.TCP, Family: model.FamilyOf(addr)},
		SessionAffinity: sticky,
		Frontends: []model.Frontend{{
			Kind: model.KindLoadBalancer, At: at, On: [...]model.Action{act, act, act},
			Restricted: true, Allow: []netip.Prefix{netip.PrefixFrom(addr, addr.BitLen()-8).Masked()},
		}},
	}
}

// advise adds to an error what can be done about it.
func advise(err error) error {
	advice := ""
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		advice = "run as root or with CAP_NET_ADMIN"
	case errors.Is(err, dataplane.ErrAbsent), errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EAFNOSUPPORT):
		advice = "the kernel has no nf_tables: load it with \"modprobe nf_tables\", or use a kernel built with CONFIG_NF_TABLES"
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EOPNOTSUPP):
		advice = "a kernel module is missing: " + strings.Join([]string{"nft_chain_nat", "nft_nat", "nft_masq", "nft_reject", "nft_fib", "nft_numgen", "nft_ct"}, ", ") + " are needed, and Linux 5.10 or later"
	default:
		return err
	}
	return fmt.Errorf("%w; %s", err, advice)
}
