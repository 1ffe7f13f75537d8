// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"slices"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/tandem-proxy/tandem/core/printable"
	"github.com/tandem-proxy/tandem/core/snapshot"
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

// printableLines writes untrusted lines of JSON, with what a terminal would interpret escaped.
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
	if newScreen(cmd.ErrOrStderr()).tty { // a script that captures both streams needs the file alone
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
			printNotes(cmd, d.Rejected)
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
