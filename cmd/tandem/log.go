package main

import (
	"context"
	"flag"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/printable"
)

// logger is the process's log. How much it says can be changed while it is in
// use.
type logger struct {
	*slog.Logger
	level slog.LevelVar
	klog  flag.FlagSet // how much Kubernetes' libraries say
}

// newLog opens the log, which is the default one from now on. What libraries write
// through klog and logrus goes into it as well.
func newLog(w io.Writer, c *config.Config) *logger {
	l := &logger{}
	o := slog.HandlerOptions{Level: &l.level}
	var h slog.Handler = slog.NewTextHandler(w, &o)
	if c.Logging.Format == "json" {
		o.ReplaceAttr = klogKeys
		h = slog.NewJSONHandler(jsonLines{w}, &o)
	}
	l.Logger = slog.New(h)
	klog.InitFlags(&l.klog)
	klog.SetSlogLogger(slog.New(decided{h, &l.klog}))
	slog.SetDefault(l.Logger)
	bridgeLogrus(l.Logger)
	l.set(c)
	return l
}

// jsonLines is where lines of JSON go that are safe to show; slog quotes those
// of text itself.
type jsonLines struct{ io.Writer }

// Write implements io.Writer for whole lines.
func (w jsonLines) Write(b []byte) (int, error) {
	if _, err := w.Writer.Write(printable.JSON(b)); err != nil {
		return 0, err
	}
	return len(b), nil
}

// set takes over how much is to be logged.
func (l *logger) set(c *config.Config) {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.LogLevel)) // checked before
	l.level.Set(min(level, slog.Level(-c.Logging.Verbosity)))
	// klog can only be told in flags. It locks them itself.
	_ = l.klog.Set("v", strconv.Itoa(c.Logging.Verbosity))
	_ = l.klog.Set("vmodule", strings.Join(c.Logging.Modules, ","))
}

// decided is a handler for what klog has decided to log by its flags, which may
// be for a single source file, and the log's own level does not matter. Loggers
// that came in a context were not decided upon; as long as there is nothing for
// single files, they are held to the verbosity.
type decided struct {
	slog.Handler
	flags *flag.FlagSet
}

// Enabled implements slog.Handler.
func (h decided) Enabled(_ context.Context, level slog.Level) bool {
	return level >= slog.LevelInfo || klog.V(klog.Level(-level)).Enabled() || h.flags.Lookup("vmodule").Value.String() != ""
}

// WithAttrs implements slog.Handler.
func (h decided) WithAttrs(as []slog.Attr) slog.Handler {
	return decided{h.Handler.WithAttrs(as), h.flags}
}

// WithGroup implements slog.Handler.
func (h decided) WithGroup(name string) slog.Handler {
	return decided{h.Handler.WithGroup(name), h.flags}
}

// klogKeys gives a record the keys that kube-proxy's JSON has: ts in
// milliseconds, err; beside them level, in words.
func klogKeys(groups []string, a slog.Attr) slog.Attr {
	if len(groups) > 0 {
		return a
	}
	switch a.Key {
	case slog.TimeKey:
		if t, ok := a.Value.Any().(time.Time); ok {
			return slog.Float64("ts", float64(t.UnixMicro())/1000)
		}
	case "error":
		a.Key = "err"
	}
	return a
}
