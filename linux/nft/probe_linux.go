// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/netlink"
)

// Try finds out whether this kernel supports the objects of a table, by creating them
// in a scratch table that no packet reaches. The error states what is missing and what
// to do about it; a foreign table of the name is an error, too. Any number of
// processes may try at once. Nothing is left, even if the process is killed; before
// Linux 5.12 a later Try deletes what it left.
func Try(ctx context.Context, t *Table, objects map[Key]Value, families ...model.Family) error {
	if err := Check(ctx, t, families...); err != nil {
		return Advise(err)
	}
	return Advise(withOwner(func(flags uint32) error { return try(ctx, t, flags, objects, families) }))
}

// withOwner calls create with the flags of a table that goes with its socket, and without
// them on kernels before 5.12, which know no owner.
func withOwner(create func(flags uint32) error) error {
	err := create(tableOwner)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
		err = create(0)
	}
	return err
}

func try(ctx context.Context, t *Table, flags uint32, objects map[Key]Value, families []model.Family) error {
	scratch := *t
	scratch.Name, scratch.flags = scratchName(time.Now()), flags
	d, err := Open(&scratch, families...)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.sweep(ctx, time.Now()); err != nil {
		return err
	}
	ops := t.probeOps(objects)
	for _, err := range d.Commit(ctx, ops) {
		if err != nil {
			return err
		}
	}
	have, err := d.Objects(ctx)
	if removed := d.Remove(context.WithoutCancel(ctx)); removed != nil || err != nil {
		return errors.Join(err, removed)
	}
	for _, op := range ops {
		if v, ok := have[op.Key]; !ok || !v.Equal(op.New) {
			return fmt.Errorf("nftables: %s: %w: Linux 5.10 or later is needed", op.Key.in(t.Name), ErrAltered)
		}
	}
	return nil
}

// ErrAltered means that the kernel accepted objects without an error, but not as
// written.
var ErrAltered = errors.New("read back differs from what was written")

// Scratch tables are named by their time of creation and a random number, as others
// may probe at the same time. A process id would not do: two containers on one
// network may both be process 1.
const scratchPrefix = "tandem-probe-"

// scratchLife is far longer than a probe takes. Older tables were left by a process
// that was killed before Linux 5.12, tables from the future by one with another clock.
const scratchLife = time.Minute

func scratchName(now time.Time) string {
	return fmt.Sprintf("%s%d-%08x", scratchPrefix, now.Unix(), rand.Uint32())
}

// abandoned reports whether a table is a scratch table that no process uses any more.
func (t *Table) abandoned(name, comment string, now time.Time) bool {
	rest, ok := strings.CutPrefix(name, scratchPrefix)
	if !ok || !strings.HasPrefix(comment, t.Owner) {
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
		if name, comment, _ := parseTable(m); messageOf(m) == msgNewTable && d.table.abandoned(name, comment, now) {
			left[name] = true
		}
		return nil
	})
	if err != nil && !errors.Is(err, dataplane.ErrInterrupted) { // the next probe deletes the rest
		return fmt.Errorf("nftables: list tables: %w", err)
	}
	for name := range left {
		both := model.Families()
		table := &Table{Name: name, Owner: d.table.Owner}
		scratch := &Driver{table: table, families: both[:], readers: d.readers, sock: d.sock, batch: newBatch(table), lost: true}
		if err := scratch.Remove(ctx); err != nil {
			return err
		}
	}
	return nil
}

// probeOps make objects, in chains that no packet enters.
func (t *Table) probeOps(objects map[Key]Value) (ops []Op) {
	for _, k := range t.Sorted(objects) {
		v := objects[k]
		if v.Body != nil && v.Body.Chain != nil && v.Body.Chain.Hook.Type != "" {
			v = Value{Body: &Body{Chain: t.shut(k.Family, v.Body.Chain)}}
		}
		ops = append(ops, Op{Verb: ledger.Create, Key: k, New: v})
	}
	return ops
}

// shut puts a match in front of all rules that no packet satisfies: protocol 255 is
// reserved.
func (t *Table) shut(f model.Family, c *Chain) *Chain {
	var rules []Rule
	for _, r := range c.Rules {
		rules = append(rules, NewRule(append([]Statement{L4ProtoIs{255}}, r.Statements...)...))
	}
	return t.newChain(f, c.Hook, rules)
}

// Advise adds to an error what can be done about it.
func Advise(err error) error {
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
