// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	"k8s.io/client-go/features"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/config/file"
	"github.com/tandem-proxy/tandem/core/printable"
	"github.com/tandem-proxy/tandem/platform"
	"github.com/tandem-proxy/tandem/platform/service"
)

// runFlags are the flags of kube-proxy that make it run one command and exit.
type runFlags struct {
	configFlags
	writeTo  string
	cleanup  bool
	initOnly bool
}

func newRun() *cobra.Command {
	var flags runFlags
	c := &cobra.Command{
		Use:   "run",
		Short: "Program Services on this machine and keep them up to date",
		Long: `run takes every flag and the configuration file of kube-proxy, so that it can
replace it. 'tandem config explain' describes each setting, and which changes of the
file a running tandem applies.`,
		Example: `  tandem run --manifests ./services --hostname-override node-1
  tandem run --config /var/lib/kube-proxy/config.conf --hostname-override node-1`,
		RunE: func(cmd *cobra.Command, _ []string) error { return flags.run(cmd) },
	}
	fs := c.Flags()
	flags.register(c)
	fs.StringVar(&flags.writeTo, "write-config-to", "", "write the resulting configuration to this file, and exit")
	fs.BoolVar(&flags.cleanup, "cleanup", false, "remove everything that tandem programmed on this machine, and exit")
	fs.BoolVar(&flags.initOnly, "init-only", false, "set the system parameters that need full root privileges, and exit; after that CAP_NET_ADMIN is enough; on Windows also make C:\\ProgramData\\Tandem, and close it to ordinary users")
	groupedHelp(c)
	return c
}

func (f *runFlags) run(cmd *cobra.Command) error {
	once := f.writeTo != "" || f.cleanup || f.initOnly
	switch {
	case once:
		return f.once(cmd)
	case f.asService():
		return service.Serve(cmd.Context(), service.Program{Work: f.work, Code: exitCode})
	}
	return f.work(cmd.Context(), cmd.ErrOrStderr(), func() {})
}

// once does the one action of a flag.
func (f *runFlags) once(cmd *cobra.Command) error {
	c, notes, err := f.config()
	if err != nil {
		return err
	}
	log := newLog(cmd.ErrOrStderr(), c)
	log.notes(notes)
	switch {
	case f.writeTo != "":
		return writeConfig(f.writeTo, c)
	case f.cleanup:
		return cleanupLocked(cmd, c, &output{form: formTable})
	}
	if err := errors.Join(platform.Prepare(c, log.Logger), service.CreateFolders()); err != nil {
		return fmt.Errorf("--init-only: %w", err)
	}
	return nil
}

// asService reports whether flags or file select a service. It comes first, so that
// mistakes in a service's configuration go to its log.
func (f *runFlags) asService() bool {
	_ = f.read()
	c, _ := f.build(f.text)
	return c.Windows.Service
}

// work runs the proxy.
func (f *runFlags) work(ctx context.Context, out io.Writer, ready func()) error {
	c, notes, err := f.config(needSource, f.needTrusted)
	if err != nil {
		return err
	}
	log := newLog(out, c)
	log.Info("starting", "version", versionText(), "node", c.NodeName, "source", c.Source(), "config", f.file, "differences", differencesPage)
	log.notes(notes)
	if c.Manifests != "" && c.Manifests != "-" { // before anything of this machine is changed
		if _, err := os.Stat(c.Manifests); err != nil {
			return fmt.Errorf("--manifests: %w", err)
		}
	}
	_ = platform.Prepare(c, log.Logger) // logged; Services are served without it
	return f.serve(ctx, c, log, ready)
}

// serve runs the proxy, and follows its configuration file.
func (f *runFlags) serve(ctx context.Context, c *config.Config, log *logger, ready func()) error {
	p, err := platform.Open(ctx, c, versionText(), log.Logger)
	if err != nil && ctx.Err() != nil { // not a failure, on which a service manager would restart it
		log.Info("stopped during start", "err", err)
		return nil
	}
	if err != nil {
		return err
	}
	p.Verbosity = log.setVerbosity
	ctx, stop := context.WithCancel(ctx)
	var beside sync.WaitGroup
	if f.file != "" {
		r := reloader{flags: &f.configFlags, running: c, proxy: p, log: log}
		beside.Go(func() { file.Watch(ctx, f.file, f.text, log.Logger, r.changed) })
	}
	beside.Go(func() {
		if p.Ready(ctx) {
			ready()
		}
	})
	err = p.Run(ctx)
	stop()
	beside.Wait()
	if err == nil {
		log.Info("stopped; Services stay programmed")
	}
	return err
}

// needSource is what run needs: where Services come from. In a pod that is its
// cluster.
func needSource(c *config.Config) []config.Finding {
	if c.Manifests != "" || c.API.Kubeconfig != "" || c.API.Server != "" || os.Getenv("KUBERNETES_SERVICE_HOST") != "" {
		return nil
	}
	return []config.Finding{{
		Name: "--manifests",
		Text: "required outside a pod, unless --kubeconfig or --master names an API server: a folder or file of manifests",
	}}
}

// writeConfig replaces a file only when all of the new one is on the disk. Into what is
// no regular file, as /dev/stdout, it writes.
func writeConfig(path string, c *config.Config) error {
	to := path + ".new"
	if s, err := os.Lstat(path); err == nil && !s.Mode().IsRegular() {
		to = path
	}
	err := writeDown(to, file.Render(c, false))
	switch {
	case to == path:
	case err == nil:
		err = os.Rename(to, path)
	default:
		_ = os.Remove(to)
	}
	if err != nil {
		return fmt.Errorf("--write-config-to: %w", err)
	}
	return nil
}

func writeDown(path string, text []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if s, failed := f.Stat(); failed == nil && s.Mode().IsRegular() { // others have nothing to sync
		err = errors.Join(err, f.Sync())
	}
	return errors.Join(err, f.Close())
}

// reconfigurable is a running proxy.
type reconfigurable interface {
	Reconfigure(next *config.Config, where string) (live *config.Config, restart []config.Change)
	Misconfigured(problems []config.Finding, where string)
}

// reloader applies what it can of a configuration file that has changed. It belongs
// to one goroutine.
//
// kube-proxy exits when it notices a change, and relies on being restarted. Here a
// running proxy continues, also with --compat=lenient: what it can apply is in
// effect at once, and the rest is shown by the log and `tandem status`.
type reloader struct {
	flags   *configFlags
	running *config.Config // the configuration in effect
	proxy   reconfigurable
	log     *logger
}

// changed takes the new content of the file. An invalid one changes nothing.
func (r *reloader) changed(text []byte) {
	where := r.flags.file
	next, report := r.flags.build(text)
	if len(report.Problems) > 0 {
		r.log.Error("invalid configuration ignored", "file", where, "problems", len(report.Problems))
		r.proxy.Misconfigured(report.Problems, where)
		return
	}
	live, restart := r.proxy.Reconfigure(next, where)
	r.log.set(live)
	changed, mode := config.Diff(r.running, live) // all of it was applied: the second list has a mode that was switched
	r.running = live
	r.log.Info("configuration reloaded", "file", where, "applied", names(append(changed, mode...)), "restart", names(restart))
}

func names(cs []config.Change) string {
	var all []string
	for _, c := range cs {
		all = append(all, c.Name)
	}
	return strings.Join(all, " ")
}

// logger is the process's log. Its level can be changed while it is in use.
type logger struct {
	*slog.Logger
	level slog.LevelVar // of the log
	named slog.LevelVar // of the configuration, without its verbosity
	klog  flag.FlagSet  // verbosity of Kubernetes' libraries
}

// newLog opens the log, which is the default one from now on. What libraries write
// through klog and logrus goes into it as well.
func newLog(w io.Writer, c *config.Config) *logger {
	l := &logger{}
	h := klogLines(w, &l.level)
	if c.Logging.Format == "json" {
		h = slog.NewJSONHandler(jsonLines{w}, &slog.HandlerOptions{Level: &l.level, ReplaceAttr: klogKeys})
	}
	l.Logger = slog.New(h)
	klog.InitFlags(&l.klog)
	klog.SetSlogLogger(slog.New(klogHandler{h, &l.klog}))
	slog.SetDefault(l.Logger)
	bridgeLogrus(l.Logger)
	// client-go logs all its feature gates when it requests the first one: at verbosity 0
	// that is silent.
	features.FeatureGates().Enabled(features.WatchListClient)
	l.set(c)
	return l
}

// notes logs the findings of a configuration that is used.
func (l *logger) notes(notes []config.Finding) {
	for _, n := range notes {
		l.Warn("configuration note", "name", n.Name, "note", n.Text, "where", n.Where)
	}
}

// klogText writes klog's format, which log collectors for Kubernetes parse: a header
// with level, time, process and source line, the quoted message, key="value".
type klogText struct {
	slog.Handler
	level slog.Leveler
}

func klogLines(w io.Writer, level slog.Leveler) slog.Handler {
	// The level is decided here, not by klog's verbosity.
	lines := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(w), textlogger.Verbosity(math.MaxInt32)))
	return klogText{logr.ToSlogHandler(lines), level}
}

func (h klogText) Enabled(_ context.Context, level slog.Level) bool { return level >= h.level.Level() }

// Handle implements slog.Handler. Each record is one line: klog itself breaks texts of
// several.
func (h klogText) Handle(ctx context.Context, r slog.Record) error {
	line := slog.NewRecord(r.Time, r.Level, printable.Text(r.Message), r.PC)
	r.Attrs(func(a slog.Attr) bool { line.AddAttrs(oneLine(a)); return true })
	return h.Handler.Handle(ctx, line)
}

func (h klogText) WithAttrs(as []slog.Attr) slog.Handler {
	lines := make([]slog.Attr, len(as))
	for i, a := range as {
		lines[i] = oneLine(a)
	}
	return klogText{h.Handler.WithAttrs(lines), h.level}
}

func (h klogText) WithGroup(name string) slog.Handler {
	return klogText{h.Handler.WithGroup(name), h.level}
}

// oneLine makes a value safe that may hold untrusted text. Groups are trusted.
func oneLine(a slog.Attr) slog.Attr {
	switch v := a.Value.Resolve(); v.Kind() {
	case slog.KindString, slog.KindAny:
		return slog.String(a.Key, printable.Text(v.String()))
	}
	return a
}

// jsonLines makes lines of JSON safe to show on a terminal.
type jsonLines struct{ io.Writer }

// Write implements io.Writer for whole lines.
func (w jsonLines) Write(b []byte) (int, error) {
	if _, err := w.Writer.Write(printable.JSON(b)); err != nil {
		return 0, err
	}
	return len(b), nil
}

// set applies level and verbosity of a configuration.
func (l *logger) set(c *config.Config) {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.LogLevel)) // validated before
	l.named.Set(level)
	// klog is only configured by flags. It locks them itself.
	_ = l.klog.Set("vmodule", strings.Join(c.Logging.Modules, ","))
	l.setVerbosity(c.Logging.Verbosity)
}

// setVerbosity changes the verbosity until the configuration is set again. One of 0 is no level of its own.
func (l *logger) setVerbosity(v int) {
	level := l.named.Level()
	if v > 0 {
		level = min(level, slog.Level(-v))
	}
	l.level.Set(level)
	_ = l.klog.Set("v", strconv.Itoa(v))
}

// klogHandler handles what klog has decided to log by its flags, which may be for a
// single source file: there the log's own level counts for information and above only. For
// loggers from a context klog decides nothing: without flags for single files the verbosity counts.
type klogHandler struct {
	slog.Handler
	flags *flag.FlagSet
}

func (h klogHandler) Enabled(ctx context.Context, level slog.Level) bool {
	if level >= slog.LevelInfo {
		return h.Handler.Enabled(ctx, level)
	}
	return klog.V(klog.Level(-level)).Enabled() || h.flags.Lookup("vmodule").Value.String() != ""
}

func (h klogHandler) WithAttrs(as []slog.Attr) slog.Handler {
	return klogHandler{h.Handler.WithAttrs(as), h.flags}
}

func (h klogHandler) WithGroup(name string) slog.Handler {
	return klogHandler{h.Handler.WithGroup(name), h.flags}
}

// klogKeys gives a record the keys that kube-proxy's JSON has: ts in
// milliseconds; level is added as a word.
func klogKeys(groups []string, a slog.Attr) slog.Attr {
	if t, ok := a.Value.Any().(time.Time); ok && len(groups) == 0 && a.Key == slog.TimeKey {
		return slog.Float64("ts", float64(t.UnixMicro())/1000)
	}
	return infoLevels(groups, a)
}

// infoLevels shows --v=1 to 3 as INFO, as klog does, and not as DEBUG+3 to +1.
func infoLevels(groups []string, a slog.Attr) slog.Attr {
	if level, ok := a.Value.Any().(slog.Level); ok && len(groups) == 0 && a.Key == slog.LevelKey && level > slog.LevelDebug && level < slog.LevelInfo {
		return slog.Any(slog.LevelKey, slog.LevelInfo)
	}
	return a
}

// logrusHook sends what libraries write through logrus, moby/ipvs and hcsshim, to
// this process's log, at level debug: callers get their errors anyway.
type logrusHook struct{ log *slog.Logger }

func bridgeLogrus(log *slog.Logger) {
	l := logrus.StandardLogger()
	l.SetOutput(io.Discard)
	l.ReplaceHooks(logrus.LevelHooks{})
	l.AddHook(logrusHook{log})
}

var _ logrus.Hook = logrusHook{}

func (logrusHook) Levels() []logrus.Level { return logrus.AllLevels }

func (h logrusHook) Fire(e *logrus.Entry) error {
	h.log.Debug("logrus", "level", e.Level.String(), "message", e.Message)
	return nil
}
