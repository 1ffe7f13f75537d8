package config

import (
	"fmt"
	"net/netip"
)

func serverSettings() []Setting {
	return []Setting{
		{
			Path: "healthzBindAddress", Flag: "healthz-bind-address", Restart: restartBind,
			Doc:   "Where /healthz and /livez are served for load balancers and the kubelet, IP:PORT. An empty flag is nowhere; an empty field the default.",
			Value: func(c *Config) Value { return listener(&c.HealthAddress) },
		},
		{
			Flag: "healthz-port", Restart: restartBind, Deprecated: "use --healthz-bind-address",
			Doc:   "The port of the address if that has none; 0 is nowhere.",
			Value: func(c *Config) Value { return portOnly(&c.HealthAddress) },
		},
		{
			Path: "metricsBindAddress", Flag: "metrics-bind-address", Restart: restartBind,
			Doc:   "Where /metrics, /status and /configz are served, IP:PORT. An empty flag is nowhere; an empty field the default.",
			Value: func(c *Config) Value { return listener(&c.HTTPAddress) },
		},
		{
			Flag: "metrics-port", Restart: restartBind, Deprecated: "use --metrics-bind-address",
			Doc:   "The port of the address if that has none; 0 is nowhere.",
			Value: func(c *Config) Value { return portOnly(&c.HTTPAddress) },
		},
		{
			Path: "bindAddressHardFail", Flag: "bind-address-hard-fail", Restart: restartBind,
			Doc:   "An address that cannot be bound ends the process. Otherwise it is tried again.",
			Value: func(c *Config) Value { return boolean(&c.BindHardFail) },
		},
		{
			Path: "enableProfiling", Flag: "profiling", Restart: restartBind,
			Doc:   "Serve /debug/pprof beside the metrics.",
			Value: func(c *Config) Value { return boolean(&c.Profiling) },
		},
		{
			Path: "showHiddenMetricsForVersion", Flag: "show-hidden-metrics-for-version", Unused: "no metric is hidden",
			Doc:   "The version of kube-proxy whose hidden metrics are shown.",
			Value: unused("showHiddenMetricsForVersion", Text, ""),
		},
	}
}

func conntrackSettings() []Setting {
	return []Setting{
		{
			Path: "oomScoreAdj", Flag: "oom-score-adj", ZeroCounts: true,
			Doc: "How soon the kernel ends this process when memory is short, -1000 (never) to 1000.",
			Value: func(c *Config) Value {
				return optional(&c.OOMScoreAdj, func(p *int) Value { return integer(p, -1000, 1000) })
			},
		},
		{
			Path: "conntrack.maxPerCore", Flag: "conntrack-max-per-core", ZeroCounts: true,
			Doc:   "How many flows the kernel may track for each CPU (nf_conntrack_max). It is raised to that, never lowered; 0 leaves it as it is.",
			Value: func(c *Config) Value { return integer(&c.Conntrack.MaxPerCore, 0, maxInt) },
		},
		{
			Path: "conntrack.min", Flag: "conntrack-min", ZeroCounts: true,
			Doc:   "How many flows the kernel may track at least, whatever maxPerCore says; of no account when that is 0.",
			Value: func(c *Config) Value { return integer(&c.Conntrack.Min, 0, maxInt) },
		},
		{
			Path: "conntrack.tcpEstablishedTimeout", Flag: "conntrack-tcp-timeout-established", ZeroCounts: true,
			Doc:   "Timeout of idle TCP connections: in conntrack, where 0 leaves it as it is, and of relays in userspace mode, where 0 is a day and a change takes effect at the next start.",
			Value: func(c *Config) Value { return optional(&c.Conntrack.TCPEstablished, duration) },
		},
		{
			Path: "conntrack.tcpCloseWaitTimeout", Flag: "conntrack-tcp-timeout-close-wait", ZeroCounts: true,
			Doc:   "Timeout of TCP connections that one side has closed: in conntrack, where 0 leaves it as it is, and of relays in userspace mode, where 0 is an hour and a change takes effect at the next start.",
			Value: func(c *Config) Value { return optional(&c.Conntrack.TCPCloseWait, duration) },
		},
		{
			Path: "conntrack.tcpBeLiberal", Flag: "conntrack-tcp-be-liberal",
			Doc:   "Take TCP packets outside the window for valid (nf_conntrack_tcp_be_liberal).",
			Value: func(c *Config) Value { return boolean(&c.Conntrack.TCPBeLiberal) },
		},
		{
			Path: "conntrack.udpTimeout", Flag: "conntrack-udp-timeout",
			Doc:   "How long a UDP flow without an answer is tracked; 0 leaves it as it is.",
			Value: func(c *Config) Value { return duration(&c.Conntrack.UDP) },
		},
		{
			Path: "conntrack.udpStreamTimeout", Flag: "conntrack-udp-timeout-stream",
			Doc:   "How long a UDP flow with answers is tracked; 0 leaves it as it is.",
			Value: func(c *Config) Value { return duration(&c.Conntrack.UDPStream) },
		},
	}
}

func logSettings() []Setting {
	const whole = "every line is written at once, to one stream"
	all := []Setting{
		{
			Flag:  "log-level",
			Doc:   "How much is logged: debug, info, warn or error. The more talkative of this and -v counts.",
			Value: func(c *Config) Value { return choice(&c.LogLevel, "debug", "info", "warn", "error") },
		},
		{
			Path: "logging.format", Flag: "logging-format", Restart: restartLog,
			Doc:   "The form of the log: text, or json with a document a line.",
			Value: func(c *Config) Value { return choice(&c.Logging.Format, "text", "json") },
		},
		{
			Path: "logging.flushFrequency", Flag: "log-flush-frequency", Unused: whole,
			Doc:   "How long kube-proxy may hold lines of the log back.",
			Value: unused("logging.flushFrequency", Interval, "5s"),
		},
		{
			Path: "logging.verbosity", Flag: "v",
			Doc:   "How much is logged, in kube-proxy's numbers: 0 is info, 4 and more is debug, 6 and more shows the requests to the API server.",
			Value: func(c *Config) Value { return integer(&c.Logging.Verbosity, 0, maxInt) },
		},
		{
			Path: "logging.vmodule", Flag: "vmodule", Joined: true,
			Doc:   "Verbosities of single source files of Kubernetes' client, as pattern=N. Flags and file are joined, the flags first.",
			Value: func(c *Config) Value { return modules(&c.Logging.Modules) },
		},
	}
	for _, format := range []string{"text", "json"} {
		split, buffer := "logging.options."+format+".splitStream", "logging.options."+format+".infoBufferSize"
		all = append(all, Setting{
			Path: split, Flag: "log-" + format + "-split-stream", Unused: whole,
			Doc:   "In kube-proxy: errors to stderr and all else to stdout, in the form " + format + ".",
			Value: unused(split, Bool, "false"),
		}, Setting{
			Path: buffer, Flag: "log-" + format + "-info-buffer-size", Unused: whole,
			Doc:   "In kube-proxy: how much of a split log may be held back, in the form " + format + ".",
			Value: unused(buffer, Quantity, "0"),
		})
	}
	for i := range all {
		all[i].BesideFile = true
	}
	return all
}

func checkIP(s string) error {
	if s == "" {
		return nil
	}
	if _, err := netip.ParseAddr(s); err != nil {
		return fmt.Errorf("%s is not an IP address", quote(s))
	}
	return nil
}
