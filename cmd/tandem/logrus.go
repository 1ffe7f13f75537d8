package main

import (
	"io"
	"log/slog"

	"github.com/sirupsen/logrus"
)

// bridge is where libraries that write through logrus, moby/ipvs and hcsshim,
// are heard: in this process's log, on level debug. Their errors come back to
// those who call them, too, and are told there in our words.
type bridge struct{ log *slog.Logger }

func bridgeLogrus(log *slog.Logger) {
	l := logrus.StandardLogger()
	l.SetOutput(io.Discard)
	l.ReplaceHooks(logrus.LevelHooks{})
	l.AddHook(bridge{log})
}

// Levels implements logrus.Hook.
func (bridge) Levels() []logrus.Level { return logrus.AllLevels }

// Fire implements logrus.Hook.
func (b bridge) Fire(e *logrus.Entry) error {
	b.log.Debug("a library says", "level", e.Level.String(), "message", e.Message)
	return nil
}
