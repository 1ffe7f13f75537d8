// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/diagnosis"
	"github.com/tandem-proxy/tandem/core/model"
	prose "github.com/tandem-proxy/tandem/core/printable"
	"github.com/tandem-proxy/tandem/linux/netlink"
)

// maxBaseChains bounds the list, since other programs create chains, too.
const maxBaseChains = 1000

// BaseChains lists the chains with a hook of all tables in the network namespace of the
// calling thread, also those of iptables-nft.
func BaseChains(ctx context.Context) ([]diagnosis.BaseChain, error) { return once(ctx, baseChains) }

// once calls read with a socket of its own, in the network namespace of the calling thread.
func once[T any](ctx context.Context, read func(context.Context, *netlink.Socket) (T, error)) (found T, err error) {
	sock, err := openSocket()
	if err != nil {
		return found, err
	}
	defer func() { err = errors.Join(err, sock.Close()) }()
	return read(ctx, sock)
}

func baseChains(ctx context.Context, sock *netlink.Socket) (all []diagnosis.BaseChain, err error) {
	const everyFamily = 0 // NFPROTO_UNSPEC
	err = dataplane.RetryInterrupted(func() error {
		all = []diagnosis.BaseChain{}
		return request(ctx, sock, msgGetChain, netlink.FlagDump, everyFamily, func(*netlink.Writer) {}, func(m netlink.Message) error {
			if c, ok := baseChain(m); ok && len(all) < maxBaseChains {
				all = append(all, c)
			}
			return nil
		})
	})
	return all, absent(err)
}

// baseChain reads a chain; ok is false without a hook, or in a family other than ip, ip6 and inet.
func baseChain(m netlink.Message) (c diagnosis.BaseChain, ok bool) {
	var h Hook
	h.Policy = PolicyAccept
	for kind, v := range m.Attrs() {
		switch kind {
		case unix.NFTA_CHAIN_TABLE:
			c.Table = netlink.Text(v)
		case unix.NFTA_CHAIN_NAME:
			c.Name = netlink.Text(v)
		case unix.NFTA_CHAIN_HOOK:
			h.parse(v)
			ok = true
		case unix.NFTA_CHAIN_POLICY:
			h.Policy = netlink.Uint32(v)
		case unix.NFTA_CHAIN_USE:
			c.Rules = int(netlink.Uint32(v))
		case unix.NFTA_CHAIN_TYPE:
			c.Type = netlink.Text(v)
		}
	}
	names := [...]string{"prerouting", "input", "forward", "output", "postrouting"}
	if int(h.Point) >= len(names) {
		return c, false // of family bridge or netdev
	}
	c.Family, c.Hook, c.Priority, c.Drop = netfilterName(m.Family()), names[h.Point], int(h.Priority), h.Policy == codeDrop
	return c, ok && slices.Contains([]string{"inet", "ip", "ip6"}, c.Family)
}

// Others uses a socket of Observe: to close one of its own would delay
// transactions (Counts).
func (d *Driver) Others(ctx context.Context) ([]string, error) {
	all, err := baseChains(ctx, d.readers[0])
	return others(all, d.table.Name), err
}

// maxOthers bounds the chains that are reported.
const maxOthers = 20

// Others describes the BaseChains that have rules or policy drop, except those of the tables
// own and of Tandem's traces and monitors.
func Others(ctx context.Context, own ...string) ([]string, error) {
	all, err := BaseChains(ctx)
	return others(all, own...), err
}

func others(all []diagnosis.BaseChain, own ...string) (texts []string) {
	more := 0
	for _, c := range all {
		switch {
		case c.Rules == 0 && !c.Drop, slices.Contains(own, c.Table), strings.HasPrefix(c.Table, monitorTable), strings.HasPrefix(c.Table, traceTable):
			continue
		case len(texts) == maxOthers:
			more++
			continue
		}
		policy := "accept"
		if c.Drop {
			policy = "drop"
		}
		texts = append(texts, fmt.Sprintf("chain %s %s %s of another program (type %s hook %s priority %d; policy %s) sees packets too: tandem does not evaluate it",
			c.Family, c.Table, c.Name, c.Type, c.Hook, c.Priority, policy))
	}
	if more > 0 {
		texts = append(texts, "and "+prose.Count(more, "more chain")+" of other programs: nft list chains shows all")
	}
	return texts
}

// plainBatch writes a transaction about one small table without a Table.
type plainBatch struct {
	encoder
	netfilter byte // family, such as unix.NFPROTO_INET
	table     string
	seq       uint32 // of the first message
	n         uint32
}

func newPlainBatch(seq uint32, family byte, table string) plainBatch {
	b := plainBatch{encoder: encoder{Writer: &netlink.Writer{}}, netfilter: family, table: table, seq: seq}
	b.Begin(batchBegin, 0, b.take(), 0, subsystem)
	b.End()
	return b
}

func (b *plainBatch) take() uint32 {
	b.n++
	return b.seq + b.n - 1
}

func (b *plainBatch) message(kind, flags uint16) {
	b.Begin(subsystem<<8|kind, flags, b.take(), b.netfilter, 0)
	b.Text(attrTable, b.table)
}

// chain creates a chain at a hook, with policy accept.
func (b *plainBatch) chain(name string, h Hook) {
	b.message(msgNewChain, netlink.FlagCreate|netlink.FlagExclusive)
	b.Text(attrChainName, name)
	h.Policy = PolicyAccept
	b.hook(h)
	b.End()
}

// rule adds a rule whose expressions fill writes.
func (b *plainBatch) rule(chain string, fill func()) {
	b.message(msgNewRule, netlink.FlagCreate)
	b.Text(attrRuleChain, chain)
	at := b.Nest(attrRuleExpressions)
	fill()
	b.NestEnd(at)
	b.End()
}

// remove deletes the table.
func (b *plainBatch) remove() {
	b.message(msgDelTable, 0)
	b.End()
}

// end ends the transaction and returns its messages, with the sequence number of the one
// that is acknowledged.
func (b *plainBatch) end() (text []byte, last uint32) {
	b.Acknowledge()
	last = b.seq + b.n - 1
	b.Begin(batchEnd, 0, b.take(), 0, subsystem)
	b.End()
	return b.Buf, last
}

// commit sends a transaction and returns its result.
func (b *plainBatch) commit(ctx context.Context, sock *netlink.Socket) error {
	text, last := b.end()
	sock.Reserve(b.n)
	if err := sock.Send(ctx, text); err != nil {
		return err
	}
	for {
		answer, err := sock.Receive()
		if err != nil {
			return err
		}
		for m, err := range netlink.Messages(answer) {
			if err != nil {
				return err
			}
			if errno, ok := m.Errno(); ok && m.Type == netlink.TypeError && (errno != 0 || m.Seq == last) {
				if errno != 0 {
					return errors.Join(fmt.Errorf("table %s: %w", b.table, unix.Errno(errno)), sock.Drain(ctx))
				}
				return nil
			}
		}
	}
}

// KeepTables notes which of the tables exist, and returns a function that deletes the others
// if they are empty by then: iptables-nft creates the tables that it only lists, and leaves
// them. The caller must call deleteNew once.
func KeepTables(ctx context.Context, f model.Family, names ...string) (deleteNew func(context.Context) error, err error) {
	sock, err := openSocket()
	if err != nil {
		return nil, err
	}
	family := netlink.FamilyOf(f)
	var absent []string
	for _, name := range names {
		err := request(ctx, sock, msgGetTable, 0, family, func(w *netlink.Writer) { w.Text(attrTable, name) }, func(netlink.Message) error { return nil })
		if errors.Is(err, unix.ENOENT) {
			absent = append(absent, name)
		} else if err != nil {
			return nil, errors.Join(fmt.Errorf("nftables: table %s: %w", name, err), sock.Close())
		}
	}
	return func(ctx context.Context) error {
		return errors.Join(deleteBare(ctx, sock, family, absent), sock.Close())
	}, nil
}

// DeleteBare deletes those of the tables that hold nothing but base chains without rules and
// with policy accept, in the network namespace of the calling thread. iptables-nft creates
// such tables again when it needs them.
func DeleteBare(ctx context.Context, f model.Family, names ...string) error {
	sock, err := openSocket()
	if err != nil {
		return err
	}
	return errors.Join(deleteBare(ctx, sock, netlink.FamilyOf(f), names), sock.Close())
}

func deleteBare(ctx context.Context, sock *netlink.Socket, family byte, names []string) error {
	if len(names) == 0 {
		return nil
	}
	var chains map[string][]string // by table
	err := dataplane.RetryInterrupted(func() error {
		chains = map[string][]string{}
		return request(ctx, sock, msgGetChain, netlink.FlagDump, family, func(*netlink.Writer) {}, func(m netlink.Message) error {
			if c, hooked := baseChain(m); hooked && !c.Drop && len(chains[c.Table]) < maxBaseChains { // one left out keeps the table
				chains[c.Table] = append(chains[c.Table], c.Name)
			}
			return nil
		})
	})
	if err != nil {
		return fmt.Errorf("nftables: list chains: %w", err)
	}
	var errs []error
	for _, name := range names {
		errs = append(errs, deleteTable(ctx, sock, family, name, chains[name]))
	}
	return errors.Join(errs...)
}

// deleteTable deletes a table and its chains in one transaction, if it holds nothing
// else and they have no rules (NLM_F_NONREC); else nothing.
func deleteTable(ctx context.Context, sock *netlink.Socket, family byte, name string, chains []string) error {
	const nonRecursive = 0x100 // NLM_F_NONREC (netlink.h)
	b := newPlainBatch(sock.Next(), family, name)
	for _, chain := range chains {
		b.message(msgDelChain, nonRecursive)
		b.Text(attrChainName, chain)
		b.End()
	}
	b.message(msgDelTable, nonRecursive)
	b.End()
	err := b.commit(ctx, sock)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EBUSY) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("nftables: delete empty table: %w", err)
	}
	return nil
}

// Temporary tables of probes, monitors and traces exist as long as the process that created them.
// Since Linux 5.12 the kernel deletes them with the socket that created them. Before, a killed process leaves
// them, and those of monitors and traces keep marking packets: Sweep deletes them. Their names have the port of a netlink socket of
// the process; while the socket exists, the process runs. A process id would not do: two containers on
// one network may both be process 1.
const (
	probeTable   = "tandem-probe-"
	monitorTable = "tandem-monitor-"
	traceTable   = "tandem-trace-"
)

// temporaryName returns the name of a temporary table. The random number tells it from a table that an earlier socket
// with the same port has left.
func temporaryName(prefix string, sock *netlink.Socket) (string, error) {
	port, err := sock.Port()
	if err != nil {
		return "", fmt.Errorf("port of a netlink socket: %w", err)
	}
	return fmt.Sprintf("%s%08x-%08x", prefix, port, rand.Uint32()), nil
}

// portOf returns the port in the name of a temporary table.
func portOf(name string) (port uint32, ok bool) {
	for _, prefix := range []string{probeTable, monitorTable, traceTable} {
		rest, is := strings.CutPrefix(name, prefix)
		text, _, cut := strings.Cut(rest, "-")
		if n, err := strconv.ParseUint(text, 16, 32); is && cut && err == nil {
			return uint32(n), true
		}
	}
	return 0, false
}

// withOwner calls create with the flag of a table that the kernel deletes with its socket, and
// without it if the kernel rejects the flag (before Linux 5.12).
func withOwner(create func(flags uint32) error) error {
	err := create(tableOwner)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
		err = create(0)
	}
	return err
}

// Sweep deletes the temporary tables of processes that no longer run, in the network namespace of this thread.
func Sweep(ctx context.Context) error {
	sock, err := openSocket()
	if err != nil {
		return err
	}
	defer sock.Close()
	type left struct {
		family byte
		name   string
		port   uint32
	}
	var tables []left
	err = request(ctx, sock, msgGetTable, netlink.FlagDump, unix.AF_UNSPEC, nil, func(m netlink.Message) error {
		name, comment, _ := parseTable(m)
		if port, temporary := portOf(name); temporary && messageOf(m) == msgNewTable && strings.HasPrefix(comment, Owner) {
			tables = append(tables, left{m.Family(), name, port})
		}
		return nil
	})
	if err != nil && !errors.Is(err, dataplane.ErrInterrupted) { // then the next Sweep deletes the rest
		return fmt.Errorf("nftables: list tables: %w", err)
	}
	if len(tables) == 0 {
		return nil
	}
	live, err := netfilterPorts() // read after the tables: a process opens its socket first
	if err != nil {
		return fmt.Errorf("nftables: list sockets: %w", err)
	}
	var failed error
	for _, t := range tables {
		if live[t.port] {
			continue
		}
		b := newPlainBatch(sock.Next(), t.family, t.name)
		b.remove()
		if err := b.commit(ctx, sock); err != nil && !errors.Is(err, unix.ENOENT) { // else another process has deleted it
			failed = errors.Join(failed, fmt.Errorf("nftables: delete table %s %s: %w", netfilterName(t.family), t.name, err))
		}
	}
	return failed
}

// netfilterPorts returns the ports of NETLINK_NETFILTER sockets in the network namespace of this thread.
func netfilterPorts() (map[uint32]bool, error) {
	f, err := os.Open("/proc/thread-self/net/netlink")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	ports := map[uint32]bool{}
	lines := bufio.NewScanner(f)
	for lines.Scan() { // sk Eth Pid Groups ...
		fields := strings.Fields(lines.Text())
		if len(fields) < 3 || fields[1] != strconv.Itoa(unix.NETLINK_NETFILTER) {
			continue
		}
		port, err := strconv.ParseUint(fields[2], 10, 32)
		if err != nil {
			return nil, err
		}
		ports[uint32(port)] = true
	}
	return ports, lines.Err()
}
