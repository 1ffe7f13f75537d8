// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"net/netip"
)

func serverSettings() []Setting {
	return []Setting{
		{
			Path: "healthzBindAddress", Flag: "healthz-bind-address", Restart: restartBind,
			Doc:   "Address of /healthz and /livez for load balancers and the kubelet, IP:PORT. An empty flag disables them; an empty field is the default.",
			Value: func(c *Config) Value { return listener(&c.HealthAddress) },
		},
		{
			Flag: "healthz-port", Restart: restartBind, Deprecated: "use --healthz-bind-address",
			Doc:   "Port of --healthz-bind-address, where that has none; 0 disables the server.",
			Value: func(c *Config) Value { return portOnly(&c.HealthAddress) },
		},
		{
			Path: "metricsBindAddress", Flag: "metrics-bind-address", Restart: restartBind,
			Doc:   "Address of /metrics, /status and /configz, IP:PORT. An empty flag disables them; an empty field is the default.",
			Value: func(c *Config) Value { return listener(&c.HTTPAddress) },
		},
		{
			Flag: "metrics-port", Restart: restartBind, Deprecated: "use --metrics-bind-address",
			Doc:   "Port of --metrics-bind-address, where that has none; 0 disables the server.",
			Value: func(c *Config) Value { return portOnly(&c.HTTPAddress) },
		},
		{
			Path: "bindAddressHardFail", Flag: "bind-address-hard-fail", Restart: restartBind,
			Doc:   "Exit if one of these addresses cannot be bound, instead of retrying.",
			Value: func(c *Config) Value { return boolean(&c.BindHardFail) },
		},
		{
			Path: "enableProfiling", Flag: "profiling", Restart: restartBind,
			Doc:   "Serve /debug/pprof on the metrics address.",
			Value: func(c *Config) Value { return boolean(&c.Profiling) },
		},
		{
			Flag: "trace-endpoint", BesideFile: true, Restart: restartStart,
			Doc: "URL of an OpenTelemetry collector (OTLP over HTTP), such as http://127.0.0.1:4318, that gets a trace of each change: from the moment it was written until the first packet can meet it. " +
				"Empty sends none.",
			Value: func(c *Config) Value { return text(&c.TraceEndpoint, checkCollector) },
		},
		{
			Path: "showHiddenMetricsForVersion", Flag: "show-hidden-metrics-for-version", Unused: "no metrics are hidden",
			Doc:   "Version of kube-proxy whose hidden metrics are shown.",
			Value: unused("showHiddenMetricsForVersion", Text, ""),
		},
	}
}

func conntrackSettings() []Setting {
	return []Setting{
		{
			Path: "oomScoreAdj", Flag: "oom-score-adj", ZeroCounts: true,
			Doc: "oom_score_adj of the process, -1000 (never killed) to 1000.",
			Value: func(c *Config) Value {
				return optional(&c.OOMScoreAdj, func(p *int) Value { return integer(p, -1000, 1000) })
			},
		},
		{
			Path: "conntrack.maxPerCore", Flag: "conntrack-max-per-core", ZeroCounts: true,
			Doc:   "Conntrack entries per CPU (nf_conntrack_max). Raises the limit, never lowers it; 0 keeps the kernel's.",
			Value: func(c *Config) Value { return integer(&c.Conntrack.MaxPerCore, 0, maxInt) },
		},
		{
			Path: "conntrack.min", Flag: "conntrack-min", ZeroCounts: true,
			Doc:   "Minimum of conntrack entries; ignored if maxPerCore is 0.",
			Value: func(c *Config) Value { return integer(&c.Conntrack.Min, 0, maxInt) },
		},
		{
			Path: "conntrack.tcpEstablishedTimeout", Flag: "conntrack-tcp-timeout-established", ZeroCounts: true,
			Doc:   "Timeout of idle TCP connections: in conntrack, where 0 keeps the kernel's, and of relays in userspace mode, where 0 is a day and a change needs a restart.",
			Value: func(c *Config) Value { return optional(&c.Conntrack.TCPEstablished, duration) },
		},
		{
			Path: "conntrack.tcpCloseWaitTimeout", Flag: "conntrack-tcp-timeout-close-wait", ZeroCounts: true,
			Doc:   "Timeout of TCP connections that one side has closed: in conntrack, where 0 keeps the kernel's, and of relays in userspace mode, where 0 is an hour and a change needs a restart.",
			Value: func(c *Config) Value { return optional(&c.Conntrack.TCPCloseWait, duration) },
		},
		{
			Path: "conntrack.tcpBeLiberal", Flag: "conntrack-tcp-be-liberal",
			Doc:   "Treat TCP packets outside the window as valid (nf_conntrack_tcp_be_liberal).",
			Value: func(c *Config) Value { return boolean(&c.Conntrack.TCPBeLiberal) },
		},
		{
			Path: "conntrack.udpTimeout", Flag: "conntrack-udp-timeout",
			Doc:   "Conntrack timeout of UDP flows without a reply; 0 keeps the kernel's.",
			Value: func(c *Config) Value { return duration(&c.Conntrack.UDP) },
		},
		{
			Path: "conntrack.udpStreamTimeout", Flag: "conntrack-udp-timeout-stream",
			Doc:   "Conntrack timeout of UDP flows with replies; 0 keeps the kernel's.",
			Value: func(c *Config) Value { return duration(&c.Conntrack.UDPStream) },
		},
	}
}

func logSettings() []Setting {
	const whole = "each line is written at once, to one stream"
	all := []Setting{
		{
			Flag:  "log-level",
			Doc:   "Log level: debug, info, warn or error. The more verbose of this and -v is used.",
			Value: func(c *Config) Value { return choice(&c.LogLevel, "debug", "info", "warn", "error") },
		},
		{
			Path: "logging.format", Flag: "logging-format", Restart: restartLog,
			Doc:   "Log format: text, or json with one document per line.",
			Value: func(c *Config) Value { return choice(&c.Logging.Format, "text", "json") },
		},
		{
			Path: "logging.flushFrequency", Flag: "log-flush-frequency", Unused: whole,
			Doc:   "Flush interval of kube-proxy's log.",
			Value: unused("logging.flushFrequency", Interval, "5s"),
		},
		{
			Path: "logging.verbosity", Flag: "v",
			Doc:   "Log verbosity as in kube-proxy: 0 is info, 4 and above debug, 6 and above logs requests to the API server.",
			Value: func(c *Config) Value { return integer(&c.Logging.Verbosity, 0, maxInt) },
		},
		{
			Path: "logging.vmodule", Flag: "vmodule", Joined: true,
			Doc:   "Verbosity per source file of Kubernetes' client, as pattern=N. Flags and file are combined, flags first.",
			Value: func(c *Config) Value { return modules(&c.Logging.Modules) },
		},
	}
	for _, format := range []string{"text", "json"} {
		split, buffer := "logging.options."+format+".splitStream", "logging.options."+format+".infoBufferSize"
		all = append(all, Setting{
			Path: split, Flag: "log-" + format + "-split-stream", Unused: whole,
			Doc:   "In kube-proxy: errors to stderr and the rest to stdout, for format " + format + ".",
			Value: unused(split, Bool, "false"),
		}, Setting{
			Path: buffer, Flag: "log-" + format + "-info-buffer-size", Unused: whole,
			Doc:   "In kube-proxy: buffer size of split log streams, for format " + format + ".",
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
