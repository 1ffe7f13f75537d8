// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/config/file"
	"github.com/tandem-proxy/tandem/core/manual"
	"github.com/tandem-proxy/tandem/core/ui"
	"github.com/tandem-proxy/tandem/installers/openrc"
	"github.com/tandem-proxy/tandem/installers/systemd"
)

func newDocs() *cobra.Command {
	var listen, dir, search string
	book := sync.OnceValue(manual.New) // not at the start of every verb
	c := &cobra.Command{
		Use:   "docs [PAGE]",
		Short: "Show the manual: its pages, one of them, or all in a browser",
		Long: `docs has the manual of this version, without a network: it lists the pages, prints one
as text, finds words in all of them, serves them with a search to browsers of this
machine until it is interrupted, or writes them as files of HTML. A running tandem
serves the same pages at /ui/docs of its metrics address.`,
		Example: "  tandem docs\n  tandem docs troubleshooting\n  tandem docs --search \"session affinity\"\n" +
			"  tandem docs --listen 127.0.0.1:8080\n  tandem docs --html ./manual",
		Args: atMostOne,
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) (names []string, _ cobra.ShellCompDirective) {
			for _, p := range book().Pages() {
				if len(args) == 0 {
					names = append(names, p.Name+"\t"+p.Title)
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			s := newScreen(cmd.OutOrStdout())
			switch {
			case len(args) > 0 && listen+dir+search != "":
				return usageError{errors.New("--listen, --html and --search are about all pages: name none")}
			case listen != "":
				at, err := netip.ParseAddrPort(listen)
				if err != nil || !at.Addr().IsLoopback() {
					return usageError{fmt.Errorf("--listen %s: must be an address of loopback with a port", listen)}
				}
				return serveUI(cmd, at, ui.Manual(), "/ui/docs/", 30*time.Second)
			case dir != "":
				return ui.WriteManual(dir)
			case search != "":
				return printHits(s, book().Search(search), search)
			case len(args) > 0:
				p := book().Find(args[0])
				if p == nil {
					return unknownPage(book(), args[0])
				}
				s.printf("%s", p.Text(s.width))
				return s.flush()
			}
			for _, c := range book().Chapters {
				s.printf("%s\n", s.paint(bold, c.Title))
				for _, p := range c.Pages {
					s.printf("  %-16s %s\n", p.Name, p.About)
				}
			}
			s.printf("\n'tandem docs PAGE' prints one, 'tandem docs --listen 127.0.0.1:8080' serves them to a browser.\n")
			return s.flush()
		},
	}
	c.Flags().StringVar(&listen, "listen", "", "serve the pages at this address of loopback; port 0 chooses one")
	c.Flags().StringVar(&dir, "html", "", "write the pages as HTML into this folder")
	c.Flags().StringVar(&search, "search", "", "list the sections that have all of these words")
	c.MarkFlagsMutuallyExclusive("listen", "html", "search")
	return c
}

func printHits(s *screen, hits []manual.Hit, words string) error {
	if len(hits) == 0 {
		return fmt.Errorf("no section of the manual has all words of %q", words)
	}
	for _, h := range hits {
		title := h.Page.Title
		if h.Anchor != "" {
			title += ": " + h.Heading
		}
		s.printf("%s  (tandem docs %s)\n    %s\n", title, h.Page.Name, h.Excerpt)
	}
	return s.flush()
}

func unknownPage(book *manual.Manual, name string) error {
	var names []string
	for _, p := range book.Pages() {
		names = append(names, p.Name)
	}
	text := fmt.Sprintf("the manual has no page %q", name)
	if near := config.Nearest(name, names); near != "" {
		text += fmt.Sprintf(": did you mean %q?", near)
	}
	return usageError{errors.New(text + "; 'tandem docs' lists them, --search finds words")}
}

// Paths of packages.
const (
	packagedProgram = "/usr/bin/tandem"
	packagedConfig  = "/etc/tandem/config.yaml"
)

// newPackaging returns the verb that writes what packages contain besides the
// program, generated from the program itself.
func newPackaging() *cobra.Command {
	return &cobra.Command{
		Use: "packaging DIR", Hidden: true,
		Short: "Write manual pages, completions, service definitions and an example configuration",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError{fmt.Errorf("%s takes one folder, not %d", cmd.CommandPath(), len(args))}
			}
			return writePackaging(cmd.Root(), args[0])
		},
	}
}

func writePackaging(root *cobra.Command, dir string) error {
	root.InitDefaultCompletionCmd()
	for _, folder := range []string{"man", "completion", "systemd", "openrc"} {
		if err := os.MkdirAll(filepath.Join(dir, folder), 0o755); err != nil {
			return err
		}
	}
	hideFlagsOfRun(root)
	preset := config.Default()
	args := []string{"run", "--config=" + packagedConfig}
	unit, script := systemd.Unit(packagedProgram, args, packagedConfig), openrc.Script(packagedProgram, args, packagedConfig)
	for _, err := range []error{
		writeManPages(root, filepath.Join(dir, "man")),
		root.GenBashCompletionFileV2(filepath.Join(dir, "completion", "tandem.bash"), true),
		root.GenZshCompletionFile(filepath.Join(dir, "completion", "_tandem")),
		root.GenFishCompletionFile(filepath.Join(dir, "completion", "tandem.fish"), true),
		os.WriteFile(filepath.Join(dir, "systemd", "tandem.service"), []byte(unit), 0o644),
		os.WriteFile(filepath.Join(dir, "openrc", "tandem"), []byte(script), 0o755),
		os.WriteFile(filepath.Join(dir, "config.yaml"), file.Render(&preset, true), 0o644),
	} {
		if err != nil {
			return fmt.Errorf("packaging: %w", err)
		}
	}
	for _, p := range manual.New().Pages() {
		if err := os.WriteFile(filepath.Join(dir, "man", "tandem-"+p.Name+".7"), p.ManPage(versionText()), 0o644); err != nil {
			return fmt.Errorf("packaging: %w", err)
		}
	}
	return nil
}

// writeManPages writes the manual page of a command, and those of the commands below it.
func writeManPages(c *cobra.Command, dir string) error {
	name := func(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }
	c.InitDefaultHelpFlag()
	var near []*cobra.Command
	if c.HasParent() {
		near = append(near, c.Parent())
	}
	for _, below := range c.Commands() {
		if !below.IsAvailableCommand() {
			continue
		}
		near = append(near, below)
		if err := writeManPages(below, dir); err != nil {
			return err
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# SYNOPSIS\n**%s**\n\n# DESCRIPTION\n%s\n", paragraphs(c.UseLine()), paragraphs(cmp.Or(c.Long, c.Short+".")))
	writeOptions(&b, "OPTIONS", c.NonInheritedFlags())
	writeOptions(&b, "OPTIONS OF "+strings.ToUpper(paragraphs(cmp.Or(c.Parent(), c).CommandPath())), c.InheritedFlags())
	if c.Example != "" {
		fmt.Fprintf(&b, "\n# EXAMPLES\n```\n%s\n```\n", c.Example)
	}
	b.WriteString("\n# SEE ALSO\n")
	for i, other := range near {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "**%s**(8)", name(other))
	}
	b.WriteByte('\n')
	return os.WriteFile(filepath.Join(dir, name(c)+".8"), manual.ManPage(name(c), 8, versionText(), c.Short, b.String()), 0o644)
}

// writeOptions writes those flags that help shows.
func writeOptions(b *strings.Builder, title string, flags *pflag.FlagSet) {
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Deprecated != "" {
			return
		}
		if title != "" {
			fmt.Fprintf(b, "\n# %s\n", title)
			title = ""
		}
		if f.Shorthand != "" {
			fmt.Fprintf(b, "**-%s**, ", f.Shorthand)
		}
		value, usage := pflag.UnquoteUsage(f)
		fmt.Fprintf(b, "**--%s**", f.Name)
		if value != "" {
			fmt.Fprintf(b, " *%s*", paragraphs(value))
		}
		if !slices.Contains([]string{"", "0", "0s", "false", "[]"}, f.DefValue) {
			usage += fmt.Sprintf(" (default %s)", f.DefValue)
		}
		fmt.Fprintf(b, "\n: %s\n\n", paragraphs(usage))
	})
}

// paragraphs is a text of help as Markdown, which keeps its lines: capital words and flags are plain in it. Lines of
// programs are as they are.
func paragraphs(text string) string {
	plain := strings.NewReplacer("<", `\<`, "*", `\*`, "_", `\_`, "[", `\[`)
	lines := strings.SplitAfter(text, "\n")
	for i, line := range lines {
		if !strings.HasPrefix(line, "\t") && !strings.HasPrefix(line, "    ") {
			lines[i] = plain.Replace(line)
		}
	}
	return strings.Join(lines, "")
}
