// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/tandem-proxy/tandem/core/health"
	"github.com/tandem-proxy/tandem/core/printable"
	"github.com/tandem-proxy/tandem/core/snapshot"
	"github.com/tandem-proxy/tandem/core/ui"
	"github.com/tandem-proxy/tandem/platform"
)

func newSnapshot(k *cluster) *cobra.Command {
	var redact bool
	var key string
	c := &cobra.Command{
		Use:   "snapshot > FILE",
		Short: "Write everything the running tandem knows to a file, for later and elsewhere",
		Long: `snapshot writes configuration, Services, EndpointSlices and Node, what tandem made of
them, how the data plane differs from that, its status and its history. It has no
secrets. With --redact names and addresses are replaced by others, alike wherever they
are, so that the file can be passed on and still be replayed; what differs in the data
plane is left out then.

tandem replay FILE makes the same plan of it on any system; status, services, explain,
trace, drift, history, top and plan read it with --snapshot FILE, and tandem ui shows it.`,
		Example: "  tandem snapshot > node-1.snapshot\n  tandem snapshot --redact > report.snapshot\n  tandem history --snapshot node-1.snapshot default/web",
		RunE: func(cmd *cobra.Command, _ []string) error {
			out := cmd.OutOrStdout()
			if k != nil {
				out = &printableLines{out: out}
			}
			return writeSnapshot(cmd, out, redact || key != "", key)
		},
	}
	c.Flags().BoolVar(&redact, "redact", false, "replace names and addresses, and remove free text")
	c.Flags().StringVar(&key, "redact-key", "", "like --redact; the same key gives the same replacements in all snapshots")
	return c
}

// printableLines are lines of JSON of somebody else, made safe to show where they are written to a terminal.
type printableLines struct {
	out  io.Writer
	rest []byte // of a character that is cut
}

func (w *printableLines) Write(p []byte) (int, error) {
	text := append(w.rest, p...)
	end := len(text)
	for end > 0 && len(text)-end < utf8.UTFMax && !utf8.RuneStart(text[end-1]) {
		end--
	}
	if end > 0 && !utf8.FullRune(text[end-1:]) {
		end--
	} else {
		end = len(text)
	}
	w.rest = slices.Clone(text[end:])
	if _, err := w.out.Write(printable.JSON(text[:end])); err != nil {
		return 0, err
	}
	return len(p), nil
}

// writeSnapshot takes a snapshot of the running tandem.
func writeSnapshot(cmd *cobra.Command, out io.Writer, redact bool, key string) error {
	if newScreen(cmd.ErrOrStderr()).tty { // whoever collects both streams wants the file alone
		defer waiting(cmd, "waiting for the running tandem, which reads the data plane back")()
	}
	if redact {
		f, err := takeSnapshot(cmd)
		if err != nil {
			return err
		}
		return writeRedacted(out, f, key)
	}
	text, err := platform.TakeSnapshot(cmd.Context())
	if err != nil {
		return err
	}
	defer text.Close()
	_, err = io.Copy(out, text)
	return err
}

func takeSnapshot(cmd *cobra.Command) (*snapshot.File, error) {
	text, err := platform.TakeSnapshot(cmd.Context())
	if err != nil {
		return nil, err
	}
	defer text.Close()
	return snapshot.Read(text)
}

// writeRedacted redacts a snapshot, with a key of its own unless there is one.
func writeRedacted(out io.Writer, f *snapshot.File, key string) error {
	f.Redact([]byte(cmp.Or(key, rand.Text())))
	return snapshot.Write(out, f)
}

func newReplay() *cobra.Command {
	var out output
	var only filter
	c := &cobra.Command{
		Use:   "replay FILE",
		Short: "Resolve and plan the inputs of a snapshot again, on any system",
		Long: `replay resolves the inputs of a snapshot as its node did, and plans them in the mode
that was in use there. It needs no privileges and changes nothing. What it resolves must
equal what the node had; if it does not, the exit code is 3: this version decides
differently from the one that wrote the snapshot. Where that one recorded it in another
way, or not at all, a note says that the two cannot be compared. The plan follows from
the inputs: one version makes the same plan of a file, byte for byte, on any system.`,
		Example: "  tandem replay node-1.snapshot\n  tandem replay node-1.snapshot -o native",
		Args:    atMostOne,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError{errors.New("replay takes one file; - for the standard input")}
			}
			file, err := readSnapshot(cmd, args[0])
			if err != nil {
				return err
			}
			if err := only.check(); err != nil {
				return err
			}
			d, likeness, err := platform.Replay(file)
			if err != nil {
				return err
			}
			printProblems(cmd, d.Rejected)
			if err := out.print(cmd, planReport(d, &only)); err != nil {
				return err
			}
			switch likeness {
			case snapshot.Differs:
				return differsError(fmt.Sprintf("resolved Service ports differ: recorded by tandem %s on %s, recomputed by this version", file.Version, file.System))
			case snapshot.Unrecorded:
				fmt.Fprintf(cmd.ErrOrStderr(), "! resolved Service ports cannot be compared: tandem %s did not record them as this version does\n", printable.Text(file.Version))
			}
			return nil
		},
	}
	out.register(c, "*summary", "native")
	only.register(c)
	return c
}

func newUI() *cobra.Command {
	var from origin
	var address string
	c := &cobra.Command{
		Use:   "ui --snapshot FILE",
		Short: "Serve pages about a snapshot; a running tandem serves its own at /ui",
		Long: `ui serves pages on this machine about the Services, endpoints and changes of a
snapshot, until interrupted. Those of the running tandem are at /ui of its metrics
address, for this machine alone: http://127.0.0.1:10249/ui.`,
		Example: "  tandem ui --snapshot node-1.snapshot",
		RunE: func(cmd *cobra.Command, _ []string) error {
			at, err := netip.ParseAddrPort(address)
			if err != nil || !at.Addr().IsLoopback() {
				return usageError{fmt.Errorf("--listen %s: must be an address of loopback with a port", address)}
			}
			d, err := from.document(cmd)
			if err != nil {
				return err
			}
			if d == nil {
				return usageError{errors.New("--snapshot is required; the pages of the running tandem are at /ui of its metrics address")}
			}
			in := ui.InputOf(d)
			file := ui.Of(func(context.Context) (*ui.Input, error) { return in, nil })
			file.Recorded = d.Recorded != nil
			return serveUI(cmd, at, ui.Handler(file), "/ui")
		},
	}
	from.register(c)
	c.Flags().StringVar(&address, "listen", "127.0.0.1:0", "where to serve it; port 0 chooses one")
	return c
}

// serveUI serves pages until the command is interrupted, and prints the address of the first.
func serveUI(cmd *cobra.Command, at netip.AddrPort, pages http.Handler, first string) error {
	l, err := (&net.ListenConfig{}).Listen(cmd.Context(), "tcp", at.String())
	if err != nil {
		return err
	}
	server := http.Server{
		Handler: health.RejectRebinding(pages), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
	}
	stop := context.AfterFunc(cmd.Context(), func() { _ = server.Close() })
	defer stop()
	fmt.Fprintf(cmd.OutOrStdout(), "http://%s%s\n", l.Addr(), first)
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
