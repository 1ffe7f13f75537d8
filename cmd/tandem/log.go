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
)

// logger is the process's log. How much it says can be changed while it is in
// use.
type logger struct {
	*slog.Logger
	level slog.LevelVar
	klog  flag.FlagSet // how much Kubernetes' libraries say
}

// newLog opens the log. What libraries write through klog and logrus goes into it
// as well.
func newLog(w io.Writer, c *config.Config) *logger {
	l := &logger{}
	o := slog.HandlerOptions{Level: &l.level}
	var h slog.Handler = slog.NewTextHandler(w, &o)
	if c.Logging.Format == "json" {
		o.ReplaceAttr = klogKeys
		h = slog.NewJSONHandler(w, &o)
	}
	l.Logger = slog.New(h)
	klog.InitFlags(&l.klog)
	klog.SetSlogLogger(slog.New(everything{h}))
	bridgeLogrus(l.Logger)
	l.set(c)
	return l
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

// everything is a handler that does not ask for the level: klog has decided by
// its own, which may be that of a single source file.
type everything struct{ slog.Handler }

// Enabled implements slog.Handler.
func (everything) Enabled(context.Context, slog.Level) bool { return true }

// WithAttrs implements slog.Handler.
func (h everything) WithAttrs(as []slog.Attr) slog.Handler {
	return everything{h.Handler.WithAttrs(as)}
}

// WithGroup implements slog.Handler.
func (h everything) WithGroup(name string) slog.Handler { return everything{h.Handler.WithGroup(name)} }

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
