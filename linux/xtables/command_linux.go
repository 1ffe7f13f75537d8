// SPDX-License-Identifier: Apache-2.0

package xtables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/sleep"
	"github.com/tandem-proxy/tandem/linux/host"
	"github.com/tandem-proxy/tandem/linux/nft"
)

// Tools are the commands of one variant. They work in the network namespace of
// the thread that calls them.
type Tools struct {
	Variant Variant
	Paths   [2]Paths // by family; empty if the family has no commands
}

// Paths are the paths of a family's commands.
type Paths struct{ Command, Restore, Save string }

// Installed returns the families that have commands.
func (t Tools) Installed() (fs []model.Family) {
	for _, f := range model.Families() {
		if t.Paths[f] != (Paths{}) {
			fs = append(fs, f)
		}
	}
	return fs
}

// FindTools returns the installed variants that have commands for IPv4, first the one that "iptables" runs. The error wraps dataplane.ErrAbsent if there are none.
func FindTools(ctx context.Context) (found []Tools, err error) {
	plain := plainVariant(ctx)
	for _, v := range []Variant{NFT, Legacy} {
		t := Tools{Variant: v}
		for f, base := range [...]string{model.IPv4: "iptables", model.IPv6: "ip6tables"} {
			t.Paths[f] = pathsOf(base+"-"+string(v), base, v == plain)
		}
		if t.Paths[model.IPv4] == (Paths{}) {
			continue
		}
		if v == plain {
			found = append([]Tools{t}, found...)
		} else {
			found = append(found, t)
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("iptables: command iptables-restore %w: install the package iptables", dataplane.ErrAbsent)
	}
	return found, nil
}

// pathsOf returns the commands named after the variant or, if the plain names run it, those.
// All three must exist.
func pathsOf(explicit, base string, plain bool) Paths {
	names := []string{explicit}
	if plain {
		names = append(names, base)
	}
	for _, name := range names {
		t := Paths{lookPath(name), lookPath(name + "-restore"), lookPath(name + "-save")}
		if t.Command != "" && t.Restore != "" && t.Save != "" {
			return t
		}
	}
	return Paths{}
}

// plainVariant returns the variant of the command "iptables"; empty if there is none.
func plainVariant(ctx context.Context) Variant {
	path := lookPath("iptables")
	if path == "" {
		return ""
	}
	out, err := run(ctx, nil, path, "--version")
	switch {
	case err != nil:
		return ""
	case bytes.Contains(out, []byte("nf_tables")):
		return NFT
	}
	return Legacy
}

// lookPath returns the path of a command, also in folders that are often missing from a
// service's PATH; empty if it is not found.
func lookPath(name string) string {
	dirs := append(filepath.SplitList(os.Getenv("PATH")), "/usr/sbin", "/sbin")
	for _, dir := range dirs {
		path := filepath.Join(dir, name)
		if s, err := os.Stat(path); filepath.IsAbs(path) && err == nil && !s.IsDir() && s.Mode()&0o111 != 0 {
			return path
		}
	}
	return ""
}

// commandTimeout bounds a command. The slowest, a restore of all rules of a hundred thousand
// Services in the nft variant, takes minutes.
const commandTimeout = 10 * time.Minute

// run runs a command in the network namespace of the calling thread. An error has the
// command's error output on one line. After a time-out or the end of ctx it wraps
// ledger.ErrUnknown.
func run(ctx context.Context, stdin []byte, path string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.WaitDelay = 10 * time.Second // its children, such as modprobe, may keep the pipes open
	if stdin != nil {
		file, err := memFile(stdin)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", filepath.Base(path), err)
		}
		defer file.Close()
		cmd.Stdin = file
	}
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}
	for _, name := range []string{"XTABLES_LOCKFILE", "XTABLES_LIBDIR"} {
		if v, set := os.LookupEnv(name); set {
			cmd.Env = append(cmd.Env, name+"="+v)
		}
	}
	err := cmd.Start()
	if err == nil {
		ended := nft.Child(ctx, cmd.Process.Pid, path)
		err = cmd.Wait()
		ended()
	}
	if err == nil {
		return stdout.Bytes(), nil
	}
	said := strings.Join(strings.Fields(truncate(stderr.String(), 1000)), " ")
	if ctx.Err() != nil {
		return nil, fmt.Errorf("%s: %w: %w", filepath.Base(path), ctx.Err(), ledger.ErrUnknown)
	}
	return nil, fmt.Errorf("%s: %w: %q", filepath.Base(path), err, said)
}

// memFile returns a file in memory for a command to read. A pipe would not do: with
// -w, iptables-restore sets an alarm that it does not cancel once it has the lock.
// The alarm interrupts a blocking read, which iptables-restore takes for the end
// of the script ("COMMIT expected"). Reading a file never blocks.
func memFile(content []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("tandem", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memfd: %w", err)
	}
	f := os.NewFile(uintptr(fd), "script")
	if _, err = f.Write(content); err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("memfd: %w", err), f.Close())
	}
	return f, nil
}

func truncate(s string, n int) string { return s[:min(n, len(s))] }

// lockWait is how long iptables-restore waits for the lock, and lockAgain the pause
// before the next attempt, in which the proxy can do other work.
const (
	lockWait  = time.Second
	lockAgain = 250 * time.Millisecond
)

// Restore runs a script: each table is written as a whole or not at all. The error wraps
// ledger.BusyError while another program holds the lock.
func (t Tools) Restore(ctx context.Context, f model.Family, text []byte) error {
	args := []string{"--noflush"}
	if t.Variant == Legacy { // the nft variant has no lock
		args = append(args, "-w", strconv.Itoa(int(lockWait.Seconds())))
	}
	_, err := run(ctx, text, t.Paths[f].Restore, args...)
	const resourceProblem = 4 // RESOURCE_PROBLEM of xtables.h; of the nft variant also other errors
	if exit, is := errors.AsType[*exec.ExitError](err); is && exit.ExitCode() == resourceProblem && t.Variant == Legacy && strings.Contains(err.Error(), "holding the xtables lock") {
		return fmt.Errorf("xtables lock: %w", ledger.BusyError{After: lockAgain})
	}
	return withScriptLine(err, text)
}

// withScriptLine adds to an error the line of the script that it names.
func withScriptLine(err error, text []byte) error {
	if err == nil {
		return nil
	}
	m := regexp.MustCompile(`line:? ([0-9]+)`).FindStringSubmatch(err.Error())
	if m == nil {
		return err
	}
	n, _ := strconv.Atoi(m[1])
	lines := bytes.Split(text, []byte("\n"))
	if n < 1 || n > len(lines) {
		return err
	}
	return fmt.Errorf("%w (%s)", err, truncate(string(lines[n-1]), 300))
}

// RestoreWait is Restore for callers that cannot continue before the lock is free.
func (t Tools) RestoreWait(ctx context.Context, f model.Family, text []byte) error {
	return retryWhileBusy(ctx, lockTime, func() error { return t.Restore(ctx, f, text) })
}

// lockTime is how long RestoreWait waits for other holders of the lock.
const lockTime = 30 * time.Second

// retryWhileBusy calls f until its error is not a ledger.BusyError, at most for limit: then
// the error wraps host.ErrLocked.
func retryWhileBusy(ctx context.Context, limit time.Duration, f func() error) error {
	end := time.Now().Add(limit)
	for {
		err := f()
		busy, is := errors.AsType[ledger.BusyError](err)
		if !is {
			return err
		}
		if time.Now().Add(busy.After).After(end) {
			return fmt.Errorf("after %s: %v: %w", limit, err, host.ErrLocked) // no longer BusyError
		}
		if !sleep.For(ctx, busy.After) {
			return ctx.Err()
		}
	}
}

// Save lists tables as iptables-save does. Listing a legacy table makes the kernel
// create it. A table that cannot be listed is an error.
func (t Tools) Save(ctx context.Context, f model.Family, tables ...Table) (string, error) {
	var all strings.Builder
	for _, table := range tables {
		text, err := t.save(ctx, f, "-t", table.String())
		if err != nil {
			return "", err
		}
		all.WriteString(text)
	}
	return all.String(), nil
}

// Counts calls found for each rule of a table that has matched packets, with their number.
func (t Tools) Counts(ctx context.Context, f model.Family, table Table, found func(chain string, r Line, packets uint64)) error {
	text, err := t.save(ctx, f, "-c", "-t", table.String())
	if err == nil {
		err = parseCounts(text, found)
	}
	if err != nil {
		return fmt.Errorf("counters of table %s: %w", table, err)
	}
	return nil
}

// SaveAll lists all existing tables and creates none. A table that cannot be listed
// is an error.
func (t Tools) SaveAll(ctx context.Context, f model.Family) (string, error) {
	return t.save(ctx, f)
}

func (t Tools) save(ctx context.Context, f model.Family, args ...string) (string, error) {
	out, err := run(ctx, nil, t.Paths[f].Save, args...)
	if err != nil {
		return "", err
	}
	if m := incompatible.FindSubmatch(out); m != nil {
		return "", fmt.Errorf("%s: table %s %w", filepath.Base(t.Paths[f].Save), m[1], ErrIncompatible)
	}
	return string(out), nil
}

// ErrIncompatible means that the nft variant cannot list a table.
var ErrIncompatible = errors.New("cannot be listed: it has nft rules that iptables cannot express")

// incompatible matches the line that iptables-nft-save prints instead of such a table, with exit
// status 0. Tables of which it only leaves out chains are listed.
var incompatible = regexp.MustCompile("(?m)^# Table `(filter|nat|mangle)' is incompatible")

// Packets returns how many packets a rule has matched.
func (t Tools) Packets(ctx context.Context, id ChainID, r Rule) (uint64, error) {
	out, err := run(ctx, nil, t.Paths[id.Family].Command, "-w", "1", "-t", id.Table.String(), "-v", "-S", id.Chain)
	if err != nil {
		return 0, fmt.Errorf("packets of %s: %w", id.Chain, err)
	}
	return Packets(string(out), id.Chain, r)
}

// mayHaveLegacyTables reports whether the legacy variant may have tables in the network
// namespace of the calling thread: the kernel lists some, or its list cannot be read. Then an error of
// reading them does not mean that there are none.
func (t Tools) mayHaveLegacyTables(f model.Family) bool {
	if t.Variant != Legacy {
		return false
	}
	known, err := legacyTables(f)
	return err != nil || len(known) > 0
}

// Present returns those of some tables that can be read without creating them. In the
// nft variant reading never creates one.
func (t Tools) Present(f model.Family, tables ...Table) (there []Table, err error) {
	if t.Variant != Legacy {
		return tables, nil
	}
	known, err := legacyTables(f)
	for _, table := range tables {
		if slices.Contains(known, table.String()) {
			there = append(there, table)
		}
	}
	return there, err
}

// legacyTables lists the legacy tables in the network namespace of the calling thread.
func legacyTables(f model.Family) ([]string, error) {
	return readTableNames("/proc/thread-self/net/" + map[model.Family]string{model.IPv4: "ip_tables_names", model.IPv6: "ip6_tables_names"}[f])
}

// readTableNames reads a list of tables from /proc, which does not exist before the module
// is loaded.
func readTableNames(path string) ([]string, error) {
	names, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("list legacy tables: %w", err)
	}
	return strings.Fields(string(names)), nil
}

// ErrMixed means that there are rules of both variants.
var ErrMixed = errors.New("this host has rules of both iptables variants")

// Choose returns, of the installed variants, the one that this host already uses or,
// if it uses none, all. Rules of both are an error, which wraps ErrMixed: packets traverse both, and
// it is unknown which one other programs will write to.
func Choose(ctx context.Context, found []Tools) ([]Tools, error) {
	uses := map[Variant]string{}
	for _, t := range found {
		for _, f := range t.Installed() {
			out, err := t.SaveAll(ctx, f)
			switch {
			case err == nil:
			case ctx.Err() != nil, t.mayHaveLegacyTables(f), errors.Is(err, ErrIncompatible):
				return nil, fmt.Errorf("iptables: detecting the variant in use failed: %w", err)
			default:
				continue // the kernel lacks it; the probe finds out whether it works
			}
			if rules := count(out); rules > 0 && uses[t.Variant] == "" {
				uses[t.Variant] = fmt.Sprintf("%d rules and chains (%s)", rules, t.Paths[f].Save)
			}
			if !installed(found, Legacy) && strings.Contains(out, legacyWarning) && legacyRules(f) > 0 {
				uses[Legacy] = "rules that no installed command can list"
			}
		}
	}
	return pickVariant(found, uses)
}

// legacyWarning is part of the warning of iptables-nft about legacy tables.
const legacyWarning = "iptables-legacy tables present"

func installed(found []Tools, v Variant) bool {
	return slices.ContainsFunc(found, func(t Tools) bool { return t.Variant == v })
}

// legacyRules returns the number of rules and chains in the legacy tables filter and nat,
// besides the built-in ones; 0 if it is unknown. It asks the kernel only about existing tables, since the
// kernel creates others that it is asked about.
func legacyRules(f model.Family) (n int) {
	there, err := legacyTables(f)
	if err != nil || len(there) == 0 {
		return 0
	}
	sock, err := infoSocket(f)
	if err != nil {
		return 0
	}
	defer unix.Close(sock)
	own := [...]int{Filter: 3 + 1, NAT: 4 + 1} // policies of the chains, and the end
	for _, t := range []Table{Filter, NAT} {
		if !slices.Contains(there, t.String()) {
			continue
		}
		if i, err := readTableInfo(sock, f, t.String()); err == nil {
			n += int(i.entries) - own[t]
		}
	}
	return n
}

// count counts the rules and the chains other than the kernel's.
func count(save string) (n int) {
	for l := range strings.Lines(save) {
		if strings.HasPrefix(l, "-A ") || strings.HasPrefix(l, ":") && strings.Contains(l, " - ") {
			n++
		}
	}
	return n
}

// pickVariant chooses by the rules that each variant has.
func pickVariant(found []Tools, uses map[Variant]string) ([]Tools, error) {
	if uses[Legacy] != "" && uses[NFT] != "" {
		return nil, fmt.Errorf("iptables: %w: legacy (iptables-legacy): %s; nft (iptables-nft): %s. "+
			"Packets traverse both. Make all programs that write rules use the same variant "+
			"(update-alternatives --config iptables), then remove the rules of the other one, or restart the machine", ErrMixed, uses[Legacy], uses[NFT])
	}
	for _, t := range found {
		if uses[t.Variant] != "" {
			return []Tools{t}, nil
		}
	}
	for v, what := range uses {
		if what != "" {
			return nil, fmt.Errorf("iptables: this host uses the %s variant: %s. Install its iptables-restore", v, what)
		}
	}
	return found, nil
}
