// SPDX-License-Identifier: Apache-2.0

// Command tandem is a Kubernetes Service proxy for Linux and Windows. Each verb
// is a function such as newRun; `tandem --help` lists them.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/metrics"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/printable"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/platform"
	"github.com/tandem-proxy/tandem/windows/hns"
)

func main() {
	platform.Harden()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args, os.Stdout, os.Stderr))
}

// run is the whole program: arguments in, exit code out.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	line := verb(args)
	if slices.Equal(line, []string{"--version"}) {
		text := versionText()
		if calledKubeProxy(args[0]) {
			text = kubeProxyVersion(text)
		}
		fmt.Fprintln(stdout, text)
		return exitOK
	}
	root := newRoot()
	if called(args[0]) == kubectlPlugin {
		root.Annotations = map[string]string{asPlugin: "kubectl tandem"}
	}
	root.SetArgs(line)
	if len(line) > 0 && line[0] != "run" {
		collectLate()
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		if errors.As(err, new(*pflag.NotExistError)) {
			err = cmp.Or(unknownFlags(c.Flags(), line), err)
			if c == root { // the verb is unknown then
				err = cmp.Or(knownVerb(root, line[:1]), err)
			}
		}
		return usageError{err}
	})
	root.SetOut(stdout)
	root.SetErr(stderr)
	reached, err := root.ExecuteContextC(ctx)
	code := exitCode(err)
	if code != exitOK {
		fmt.Fprintf(stderr, "tandem: %s\n", printable.Lines(err.Error()))
	}
	if code == exitUsage {
		fmt.Fprintf(stderr, "See '%s --help'.\n", asCalled(reached, reached.CommandPath()))
	}
	return code
}

// verb adds the verb run where only flags are given, or where the program is called
// kube-proxy, so that it can replace it unchanged. --version, in whatever form,
// prints the version and no more, as in kube-proxy.
func verb(args []string) []string {
	rest := args[1:]
	if called(args[0]) == kubectlPlugin {
		return append([]string{"kubectl"}, rest...)
	}
	if !calledKubeProxy(args[0]) {
		if len(rest) == 0 || !strings.HasPrefix(rest[0], "-") || rest[0] == "-h" || rest[0] == "--help" {
			return rest
		}
	}
	for _, a := range rest {
		if flag, value, _ := strings.Cut(a, "="); flag == "--version" && value != "false" {
			return []string{"--version"}
		}
	}
	return append([]string{"run"}, rest...)
}

// calledKubeProxy reports whether the program has kube-proxy's name.
func calledKubeProxy(program string) bool { return called(program) == "kube-proxy" }

// called is the name that the program was called by.
func called(program string) string { return strings.TrimSuffix(filepath.Base(program), ".exe") }

// asPlugin is the annotation of the root that is called by kubectl: what kubectl's user types.
const asPlugin = "plugin"

// asCalled is the line of a command as its user types it.
func asCalled(c *cobra.Command, line string) string {
	if typed, plugin := c.Root().Annotations[asPlugin]; plugin {
		return strings.Replace(line, "tandem kubectl", typed, 1)
	}
	return line
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "tandem",
		Short: "A Kubernetes Service proxy for Linux and Windows",
		Long: `tandem implements Kubernetes Services on this machine: it programs Services and
EndpointSlices into the kernel, and keeps them up to date.`,
		Example: `  tandem demo                              # see it work, here and now
  tandem plan --manifests ./services       # what would be programmed, and why
  tandem run  --manifests ./services       # program it, and follow the folder`,
		SilenceErrors: true, // run prints them
		SilenceUsage:  true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		// Before cobra does it, whose error is not one of usage.
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := cmd.ValidateFlagGroups(); err != nil {
				return usageError{err}
			}
			return nil
		},
	}
	root.Flags().Bool("version", false, "print the version") // by run: cobra's own would offer -v, which is the verbosity
	root.SetUsageFunc(plainHelp)
	root.AddCommand(newRun(), newPlan(), newStatus(nil), newServices(nil), newExplain(nil), newTrace(nil), newDrift(nil), newHistory(nil), newTop(nil), newMonitor(), newSnapshot(nil), newReplay(), newUI(nil), newKubectl(),
		newSwitch(), newDoctor(), newTest(), newDemo(), newCleanup(), newConfig(), newHNS(hns.Local),
		newInstall(), newDocs(), newVersion())
	root.AddCommand(newServiceVerbs()...)
	for _, c := range append(root.Commands(), root) {
		if c.Args != nil {
			continue
		}
		c.Args = noArgs
		if c.HasSubCommands() {
			c.Args = knownVerb
		}
	}
	root.AddCommand(newPackaging(), newControl())
	return root
}

// The exit codes, the same for every verb.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2 // a mistake on the command line, or no tandem and no mode that could answer
	exitDiffers = 3 // there are differences
)

// exitCode is that of a verb that ended with err.
func exitCode(err error) int {
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, new(differsError)):
		return exitDiffers
	case errors.As(err, new(usageError)), errors.As(err, new(unsupportedError)):
		return exitUsage
	}
	return exitFailure
}

// usageError is a mistake on the command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// unsupportedError means that the mode in use cannot do what was asked for.
type unsupportedError string

func (e unsupportedError) Error() string { return string(e) }

// differsError means that there are differences or changes pending, which are on the
// standard output.
type differsError string

func (e differsError) Error() string { return string(e) }

// knownVerb rejects unknown verbs of a command, and suggests one of it or of its
// verbs.
func knownVerb(c *cobra.Command, args []string) error {
	i := slices.IndexFunc(args, func(a string) bool { return a != "" })
	if i < 0 {
		return nil
	}
	paths := map[string]string{} // by name; the shortest
	var add func(*cobra.Command)
	add = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			if path, known := paths[sub.Name()]; !sub.Hidden && (!known || len(sub.CommandPath()) < len(path)) {
				paths[sub.Name()] = sub.CommandPath()
			}
			add(sub)
		}
	}
	add(c)
	text := fmt.Sprintf("%s has no verb %q", c.CommandPath(), args[i])
	if near := config.Nearest(args[i], slices.Collect(maps.Keys(paths))); near != "" {
		text += ": did you mean '" + paths[near] + "'?"
	}
	return usageError{errors.New(text)}
}

// noArgs accepts empty arguments, as kube-proxy does: templates of manifests produce
// them.
func noArgs(c *cobra.Command, args []string) error {
	for _, a := range args {
		if a != "" {
			return usageError{fmt.Errorf("%s takes no argument: %q", c.CommandPath(), a)}
		}
	}
	return nil
}

func atMostOne(c *cobra.Command, args []string) error {
	if len(args) > 1 {
		return usageError{fmt.Errorf("%s takes one argument at most, not %d", c.CommandPath(), len(args))}
	}
	return nil
}

// serviceArgument reads NAMESPACE/NAME, the one argument that a verb may have; without
// a namespace it is default. Without an argument the name is empty: all Services.
func serviceArgument(args []string) (n model.ServiceName, err error) {
	if len(args) == 0 {
		return n, nil
	}
	text := args[0]
	if !strings.Contains(text, "/") {
		text = "default/" + text
	}
	if n, err = model.ParseServiceName(text); err != nil {
		return n, usageError{err}
	}
	return n, nil
}

// targetArgument is TO of a connection: a name alone is a Service of namespace default, as for verbs about a
// Service, with its port or not.
func targetArgument(text string) string {
	if strings.Contains(text, "/") {
		return text
	}
	if _, err := netip.ParseAddrPort(text); err == nil {
		return text
	}
	if _, err := netip.ParseAddr(text); err == nil {
		return text
	}
	return "default/" + text
}

// completeConnection completes FROM with the senders that have names, and TO with Services.
func completeConnection(c *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return []string{"host", "pod", "outside"}, cobra.ShellCompDirectiveNoFileComp
	}
	return completeServices(1)(c, args, begun)
}

// completeServices completes the argument at a place with the names of the running tandem's Services; without
// one with nothing.
func completeServices(place int) func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return func(c *cobra.Command, args []string, _ string) (names []string, _ cobra.ShellCompDirective) {
		if len(args) == place {
			ctx, cancel := context.WithTimeout(c.Context(), time.Second)
			defer cancel()
			found, _ := platform.Ask(ctx, question.ListServices(), question.ServicesRequest{})
			for i := range found.Services {
				names = append(names, found.Services[i].Name)
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// serviceText is what queries call a Service; empty for all.
func serviceText(n model.ServiceName) string {
	if n == (model.ServiceName{}) {
		return ""
	}
	return n.String()
}

// Help of verbs that take the flags of run: run shows them by subject, the others show
// their own flags and the few of run's that they are mostly called with.

// mostUsed are the flags of run that verbs about Services are called with.
func mostUsed() []string {
	return []string{"config", "manifests", "kubeconfig", "hostname-override", "proxy-mode", "cluster-cidr"}
}

// groupedHelp shows the flags of run under the subjects of their settings.
func groupedHelp(c *cobra.Command) {
	c.Annotations = nil
	c.SetUsageFunc(func(c *cobra.Command) error {
		s := newScreen(c.OutOrStdout())
		s.printf("Usage:\n  %s\n\nExamples:\n%s\n", c.UseLine(), c.Example)
		rest := pflag.NewFlagSet("", pflag.ContinueOnError)
		seen := map[string]bool{}
		for _, g := range config.Groups() {
			fs := pflag.NewFlagSet("", pflag.ContinueOnError)
			for _, set := range g.Settings {
				if f := c.Flags().Lookup(set.Flag); f != nil && set.Flag != "" && !seen[set.Flag] {
					seen[set.Flag] = true
					fs.AddFlag(f)
				}
			}
			s.flags(g.Title, fs)
		}
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if !seen[f.Name] {
				rest.AddFlag(f)
			}
		})
		s.flags("Other flags", rest)
		return s.flush()
	})
}

// helpWidth is the longest line of a help, but for examples and long names of flags.
const helpWidth = 100

// A line of a description does not begin with a flag, which would look like an entry of its own; pflag lets
// lines be longer than asked for by some columns.
const (
	unbroken = "\u00a0"
	wrapSlop = 5
)

// flags writes the flags of a set that are not hidden, under a title.
func (s *screen) flags(title string, fs *pflag.FlagSet) {
	if !fs.HasAvailableFlags() {
		return
	}
	shown := pflag.NewFlagSet("", pflag.ContinueOnError)
	fs.VisitAll(func(f *pflag.Flag) {
		plain := *f
		if plain.NoOptDefVal == "true" { // a switch, which pflag shows with [=true|false]
			plain.NoOptDefVal, plain.Value = "", switched{plain.Value}
		}
		plain.Usage = strings.ReplaceAll(plain.Usage, " --", unbroken+"--")
		shown.AddFlag(&plain)
	})
	width := helpWidth
	if 0 < s.width && s.width < width {
		width = s.width
	}
	s.printf("\n%s:\n%s", title, strings.ReplaceAll(shown.FlagUsagesWrapped(width-wrapSlop), unbroken, " "))
}

// folded breaks a text between words into lines of a width.
func folded(text string, width int) (lines []string) {
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && len(line)+1+len(word) > width {
			lines, line = append(lines, line), ""
		}
		line = strings.TrimSpace(line + " " + word)
	}
	return append(lines, line)
}

// switched is the value of a flag that is mostly given without one.
type switched struct{ pflag.Value }

func (switched) Type() string { return "" }

// plainHelp shows what a verb does, its verbs and its flags: that of all verbs that have no other.
func plainHelp(c *cobra.Command) error {
	s := newScreen(c.OutOrStdout())
	s.printf("Usage:\n")
	if c.Runnable() {
		s.printf("  %s\n", asCalled(c, c.UseLine()))
	}
	if c.HasAvailableSubCommands() {
		s.printf("  %s [command]\n", asCalled(c, c.CommandPath()))
	}
	if c.HasExample() {
		s.printf("\nExamples:\n%s\n", c.Example)
	}
	if c.HasAvailableSubCommands() {
		s.printf("\nAvailable Commands:\n")
		for _, verb := range c.Commands() {
			if verb.IsAvailableCommand() || verb.Name() == "help" {
				pad := verb.NamePadding() + len("   ")
				s.printf("  %-*s %s\n", verb.NamePadding(), verb.Name(), strings.Join(folded(verb.Short, helpWidth-pad), "\n"+strings.Repeat(" ", pad)))
			}
		}
	}
	s.flags("Flags", c.LocalFlags())
	s.flags("Global Flags", c.InheritedFlags())
	if c.HasAvailableSubCommands() {
		s.printf("\nUse \"%s [command] --help\" for more information about a command.\n", asCalled(c, c.CommandPath()))
	}
	return s.flush()
}

// ofRun reports whether a flag is one of run's.
func ofRun(f *pflag.Flag) bool {
	_, raw := f.Value.(*rawFlag)
	return raw
}

// shownOfRun is the annotation of a verb that has the flags of run that its help shows.
const shownOfRun = "shown flags of run"

// hideFlagsOfRun leaves to the manual page of a verb the flags that its help shows.
func hideFlagsOfRun(c *cobra.Command) {
	for _, verb := range c.Commands() {
		hideFlagsOfRun(verb)
	}
	shown, some := c.Annotations[shownOfRun]
	if !some {
		return
	}
	c.Flags().VisitAll(func(f *pflag.Flag) {
		f.Hidden = f.Hidden || ofRun(f) && !slices.Contains(strings.Fields(shown), f.Name)
	})
	c.Long += "\n\nAll other flags of run are accepted, too: see tandem-run(8)."
}

// ownHelp shows a verb's own flags, and those of run's that are named.
func ownHelp(c *cobra.Command, runs []string) {
	c.Annotations = map[string]string{shownOfRun: strings.Join(runs, " ")}
	c.SetUsageFunc(func(c *cobra.Command) error {
		s := newScreen(c.OutOrStdout())
		s.printf("Usage:\n  %s\n", c.UseLine())
		if c.Example != "" {
			s.printf("\nExamples:\n%s\n", c.Example)
		}
		own := pflag.NewFlagSet("", pflag.ContinueOnError)
		shared := pflag.NewFlagSet("", pflag.ContinueOnError)
		c.Flags().VisitAll(func(f *pflag.Flag) {
			switch {
			case slices.Contains(runs, f.Name):
				shared.AddFlag(f)
			case !ofRun(f):
				own.AddFlag(f)
			}
		})
		s.flags("Flags", own)
		s.flags("Flags of run", shared)
		s.printf("\nAll other flags of run are accepted, too: see '%s run --help'.\n", strings.Fields(c.CommandPath())[0])
		return s.flush()
	})
}

// version is stamped at build time with -ldflags "-X main.version=...".
var version string

// versionText is the stamped version, else that of the build information.
func versionText() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}

// differencesPage shows the differences from kube-proxy, of this version and without a network. Logs and config check
// name it.
const differencesPage = "tandem docs differences"

// kubeProxyVersion is what a program called kube-proxy prints: the release that it
// replaces, as scripts parse it, with ours as its build metadata.
func kubeProxyVersion(ours string) string {
	ours = strings.Map(func(r rune) rune {
		if r == '.' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' {
			return r
		}
		return '-'
	}, strings.TrimPrefix(ours, "v"))
	return "Kubernetes v" + metrics.Kubernetes + "+tandem." + ours
}

// build is what `tandem version` prints about this program.
type build struct {
	Version  string `json:"version"`
	Platform string `json:"platform"`
	Go       string `json:"go"`
}

func newVersion() *cobra.Command {
	var out output
	c := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		RunE: func(cmd *cobra.Command, _ []string) error {
			b := build{versionText(), runtime.GOOS + "/" + runtime.GOARCH, runtime.Version()}
			return out.print(cmd, report{document: b, text: func(s *screen) { s.printf("tandem %s %s %s\n", b.Version, b.Platform, b.Go) }})
		},
	}
	out.register(c)
	return c
}

// collectFrom is the memory at which a command that ends after its answer collects garbage
// for the first time: the lists of a cluster of 10,000 Services need less.
const collectFrom = 32 << 20

// collectLate puts off garbage collection until this process has collectFrom bytes; from
// then on it is Go's default. What a user has set stands.
func collectLate() {
	if cmp.Or(os.Getenv("GOGC"), os.Getenv("GOMEMLIMIT")) != "" {
		return
	}
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(collectFrom)
	first := new([2]uintptr) // garbage, which the first collection finds
	runtime.AddCleanup(first, func(percent int) {
		debug.SetGCPercent(percent)
		debug.SetMemoryLimit(math.MaxInt64)
	}, 100)
}
