package userspace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"

	"github.com/tandem-proxy/tandem/core/model"
)

// table is the nat table of one family, through the tools that own its format.
// What they stand for, legacy tables or nf_tables, is the system's choice.
type table struct{ save, restore string }

func tableOf(f model.Family) table {
	if f == model.IPv4 {
		return table{"iptables-save", "iptables-restore"}
	}
	return table{"ip6tables-save", "ip6tables-restore"}
}

// read lists the table.
func (t table) read(ctx context.Context) (saved, error) {
	text, err := run(ctx, "", t.save, "-t", "nat")
	if err != nil {
		return saved{}, err
	}
	if !strings.Contains(text, "*nat") { // never used in this namespace
		return saved{}, nil
	}
	s, err := parse(text, watched)
	if err != nil {
		return s, fmt.Errorf("%s: %w", t.save, err)
	}
	return s, nil
}

// lockWait is how many seconds another user of the tables is waited for.
const lockWait = "5"

// write applies a batch, as a whole or not at all.
func (t table) write(ctx context.Context, b *batch) error {
	_, err := run(ctx, b.text(), t.restore, "--noflush", "-w", lockWait)
	return err
}

// run runs a tool to its end. The error tells what it said.
func run(ctx context.Context, in, name string, args ...string) (string, error) {
	path, err := find(name)
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, path, args...)
	var out, said bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(in), &out, &said
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(said.String()))
	}
	return out.String(), nil
}

// find finds a tool, also where a service's path is short.
func find(name string) (string, error) {
	for _, dir := range [...]string{"", "/usr/sbin/", "/sbin/"} {
		if path, err := exec.LookPath(dir + name); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s: %w", name, errors.Join(exec.ErrNotFound, errors.New("install the package iptables")))
}
