// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/ipset"
	"github.com/tandem-proxy/tandem/linux/netns"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// What an earlier run has left goes without the scheduler that is configured, and without
// iptables; where its chains are then left, that is said.
func TestLeftoversNeedNoTools(t *testing.T) {
	s := newSite(t)
	before := objects(t, s)
	serve := func() error {
		c := config.Default()
		b, err := openBackend(t.Context(), &c, slog.New(slog.DiscardHandler))
		if err != nil {
			return err
		}
		if err := b.Adopt(t.Context()); err != nil {
			return errors.Join(err, b.Close())
		}
		b.SetHost(testHost())
		b.Update([]model.Delta{{New: web(first)}})
		_, err = b.Sync(t.Context())
		return errors.Join(err, b.Close())
	}
	other := config.Default()
	other.IPVS.Scheduler = "fastest"
	must(t, s.net.Do(netns.Node, serve))
	must(t, s.net.Do(netns.Node, func() error { return Mode().Clear(t.Context(), &other) }))
	if after := objects(t, s); after != before {
		t.Fatalf("left:\n%s\nwas:\n%s", after, before)
	}

	must(t, s.net.Do(netns.Node, serve))
	must(t, s.aside(func() error {
		if err := hideIPTables(t); err != nil {
			return err
		}
		if _, err := openBackend(t.Context(), &other, slog.New(slog.DiscardHandler)); err == nil || errors.Is(err, dataplane.ErrAbsent) {
			t.Errorf("opened to serve: %v", err)
		}
		if err := Mode().Clear(t.Context(), &other); !errors.Is(err, ipset.ErrInUse) {
			t.Errorf("its chains are left: %v", err)
		}
		return nil
	}))
	if servers := s.run("ipvsadm", "-Sn"); servers != "" {
		t.Errorf("virtual servers are left:\n%s", servers)
	}
	if links := s.run("ip", "-o", "link"); strings.Contains(links, Link) {
		t.Errorf("the device is left:\n%s", links)
	}
	must(t, s.net.Do(netns.Node, func() error { return Mode().Clear(t.Context(), &other) }))
	if after := objects(t, s); after != before {
		t.Errorf("left:\n%s\nwas:\n%s", after, before)
	}
}

// hideIPTables hides the folders in which there is iptables from the calling thread.
func hideIPTables(t *testing.T) error {
	if err := ownMounts(); err != nil {
		return err
	}
	for range 10 {
		found, err := xtables.FindTools(t.Context())
		if errors.Is(err, dataplane.ErrAbsent) {
			return nil
		} else if err != nil {
			return err
		}
		if err := unix.Mount("none", filepath.Dir(found[0].Paths[model.IPv4].Save), "tmpfs", 0, ""); err != nil {
			return err
		}
	}
	return errors.New("iptables is in too many folders")
}
