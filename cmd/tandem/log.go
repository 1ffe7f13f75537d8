// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"flag"
	"io"
	"log/slog"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/sirupsen/logrus"
	"k8s.io/client-go/features"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/printable"
)

// logger is the process's log. Its level can be changed while it is in use.
type logger struct {
	*slog.Logger
	level slog.LevelVar
	klog  flag.FlagSet // verbosity of Kubernetes' libraries
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
	l.level.Set(min(level, slog.Level(-c.Logging.Verbosity)))
	// klog is only configured by flags. It locks them itself.
	_ = l.klog.Set("v", strconv.Itoa(c.Logging.Verbosity))
	_ = l.klog.Set("vmodule", strings.Join(c.Logging.Modules, ","))
}

// setVerbosity changes the verbosity until the configuration is set again.
func (l *logger) setVerbosity(v int) {
	c := config.Default()
	c.Logging.Verbosity = v
	c.Logging.Modules = strings.FieldsFunc(l.klog.Lookup("vmodule").Value.String(), func(r rune) bool { return r == ',' })
	l.set(&c)
}

// klogHandler handles what klog has decided to log by its flags, which may be for a
// single source file: the log's own level does not count. For loggers from a context
// klog decides nothing: without flags for single files the verbosity counts.
type klogHandler struct {
	slog.Handler
	flags *flag.FlagSet
}

func (h klogHandler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= slog.LevelInfo || klog.V(klog.Level(-level)).Enabled() || h.flags.Lookup("vmodule").Value.String() != ""
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
