// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tandem-proxy/tandem/core/model"
)

// web returns a Service of one port, changed by edit.
func web(edit func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: corev1.ServiceSpec{
			ClusterIP: "10.96.0.10",
			Ports:     []corev1.ServicePort{{Name: "http", Port: 80}},
		},
	}
	if edit != nil {
		edit(s)
	}
	return s
}

func lb(edit func(*corev1.Service)) *corev1.Service {
	return web(func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		edit(s)
	})
}

func TestServiceWhole(t *testing.T) {
	created := time.Date(2026, 11, 21, 8, 0, 0, 0, time.UTC)
	got, problems := Service(lb(func(s *corev1.Service) {
		s.CreationTimestamp = metav1.NewTime(created)
		s.Spec.ClusterIPs = []string{"10.96.0.10", "fd00:10:96::10"}
		s.Spec.ExternalIPs = []string{"203.0.113.1", "203.0.113.1", "2001:db8:cafe::1"}
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		s.Spec.InternalTrafficPolicy = ptr(corev1.ServiceInternalTrafficPolicyLocal)
		s.Spec.HealthCheckNodePort = 30500
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr[int32](86400)}}
		s.Spec.LoadBalancerSourceRanges = []string{" 198.51.100.7/24 ", "2001:db8:1::/64"}
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.9"}, {Hostname: "lb.example.com"}}
		s.Spec.Ports = []corev1.ServicePort{
			{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53, NodePort: 30053},
			{Name: "dns-tcp", Protocol: corev1.ProtocolTCP, Port: 53, NodePort: 30053},
			{Name: "sig", Protocol: corev1.ProtocolSCTP, Port: 65535},
		}
	}))
	expect(t, problems)
	want := &model.Service{
		Name: model.ServiceName{Namespace: "default", Name: "web"}, Type: model.LoadBalancer, Created: created,
		ClusterIPs:      addrs("10.96.0.10", "fd00:10:96::10"),
		ExternalIPs:     addrs("203.0.113.1", "2001:db8:cafe::1"),
		LoadBalancerIPs: addrs("203.0.113.9"),
		Restricted:      true, SourceRanges: nets("198.51.100.0/24", "2001:db8:1::/64"),
		External: model.Local, Internal: model.Local, SessionAffinity: 24 * time.Hour, HealthCheckNodePort: 30500,
		Ports: []model.ServicePort{
			{Name: "dns", Proto: model.UDP, Port: 53, NodePort: 30053},
			{Name: "dns-tcp", Proto: model.TCP, Port: 53, NodePort: 30053},
			{Name: "sig", Proto: model.SCTP, Port: 65535},
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestServiceNotOurs(t *testing.T) {
	for name, s := range map[string]*corev1.Service{
		"nil":           nil,
		"empty":         {},
		"no cluster IP": web(func(s *corev1.Service) { s.Spec.ClusterIP = "" }),
		"headless":      web(func(s *corev1.Service) { s.Spec.ClusterIP = "None" }),
		"headless twice": web(func(s *corev1.Service) {
			s.Spec.ClusterIP, s.Spec.ClusterIPs = "None", []string{"None"}
		}),
		"headless list":    web(func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "", []string{"None"} }),
		"ExternalName":     web(func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName }),
		"foreign proxy":    web(func(s *corev1.Service) { s.Labels = map[string]string{LabelProxyName: "other"} }),
		"unnamed, foreign": web(func(s *corev1.Service) { s.Labels = map[string]string{LabelProxyName: ""} }),
	} {
		if got, problems := Service(s); got != nil || problems != nil {
			t.Errorf("%s: %v, %v", name, got, problems)
		}
	}
	now := metav1.Now()
	if got, _ := Service(web(func(s *corev1.Service) { s.DeletionTimestamp = &now })); got == nil {
		t.Error("a Service whose deletion waits for a finalizer is not served")
	}
}

func TestServiceClusterIPs(t *testing.T) {
	for _, c := range []struct {
		ip       string
		ips      []string
		want     []string
		problems []string
	}{
		{"10.96.0.1", nil, []string{"10.96.0.1"}, nil},
		{"", []string{"fd00::1"}, []string{"fd00::1"}, nil},
		{"fd00::1", []string{"fd00::1", "10.96.0.1"}, []string{"fd00::1", "10.96.0.1"}, nil},
		{"10.96.0.1", []string{"10.96.0.1", "bad"}, []string{"10.96.0.1"}, []string{"BadAddress: spec.clusterIPs[1]: bad (not an IP address)"}},
		{"10.96.0.1", []string{"10.96.0.2"}, []string{"10.96.0.2"}, []string{"Invalid: spec.clusterIP: 10.96.0.1 (differs from clusterIPs[0], which is used)"}},
		{"127.0.0.1", nil, nil, []string{"BadAddress: spec.clusterIP: 127.0.0.1 (loopback)"}},
		{"0.0.0.0", nil, nil, []string{"BadAddress: spec.clusterIP: 0.0.0.0 (unspecified)"}},
		{"", []string{""}, nil, []string{`BadAddress: spec.clusterIPs[0]: "" (not an IP address)`}},
	} {
		got, problems := Service(web(func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = c.ip, c.ips }))
		expect(t, problems, c.problems...)
		switch {
		case c.want == nil && got != nil:
			t.Errorf("%s %v: served without a cluster IP", c.ip, c.ips)
		case c.want != nil && (got == nil || !reflect.DeepEqual(got.ClusterIPs, addrs(c.want...))):
			t.Errorf("%s %v: %+v", c.ip, c.ips, got)
		}
	}
}

func TestServiceFields(t *testing.T) {
	affinity := func(n *int32) func(*corev1.Service) {
		return func(s *corev1.Service) {
			s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
			s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: n}}
		}
	}
	withAffinity := func(d time.Duration) func(*model.Service) bool {
		return func(s *model.Service) bool { return s.SessionAffinity == d }
	}
	const timeout = "Invalid: spec.sessionAffinityConfig.clientIP.timeoutSeconds: "
	for name, c := range map[string]struct {
		edit    func(*corev1.Service)
		ok      func(*model.Service) bool
		problem string
	}{
		"affinity none":        {func(s *corev1.Service) { s.Spec.SessionAffinity = "None" }, withAffinity(0), ""},
		"affinity, no config":  {func(s *corev1.Service) { s.Spec.SessionAffinity = "ClientIP" }, withAffinity(3 * time.Hour), ""},
		"affinity, nil time":   {affinity(nil), withAffinity(3 * time.Hour), ""},
		"affinity, nil client": {func(s *corev1.Service) { affinity(nil)(s); s.Spec.SessionAffinityConfig.ClientIP = nil }, withAffinity(3 * time.Hour), ""},
		"affinity 1":           {affinity(ptr[int32](1)), withAffinity(time.Second), ""},
		"affinity 0":           {affinity(ptr[int32](0)), withAffinity(3 * time.Hour), timeout + "0 (not within 1..86400, using 10800)"},
		"affinity -1":          {affinity(ptr[int32](-1)), withAffinity(3 * time.Hour), timeout + "-1 (not within 1..86400, using 10800)"},
		"affinity 86401":       {affinity(ptr[int32](86401)), withAffinity(24 * time.Hour), timeout + "86401 (not within 1..86400, using 86400)"},
		"affinity 2^31-1":      {affinity(ptr[int32](1<<31 - 1)), withAffinity(24 * time.Hour), timeout + "2147483647 (not within 1..86400, using 86400)"},
		"affinity unknown": {
			func(s *corev1.Service) { s.Spec.SessionAffinity = "Cookie" }, withAffinity(0),
			"Invalid: spec.sessionAffinity: Cookie (unknown, using None)",
		},
		"type unknown": {
			func(s *corev1.Service) { s.Spec.Type = "Magic" }, func(s *model.Service) bool { return s.Type == model.ClusterIP },
			"Invalid: spec.type: Magic (unknown, using ClusterIP)",
		},
		"external policy unknown": {
			func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = "local" }, func(s *model.Service) bool { return s.External == model.Cluster },
			"Invalid: spec.externalTrafficPolicy: local (unknown, using Cluster)",
		},
		"internal policy unknown": {
			func(s *corev1.Service) {
				s.Spec.InternalTrafficPolicy = ptr(corev1.ServiceInternalTrafficPolicy("x\ny"))
			}, func(s *model.Service) bool { return s.Internal == model.Cluster },
			`Invalid: spec.internalTrafficPolicy: "x\ny" (unknown, using Cluster)`,
		},
		"external IP": {
			func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"169.254.169.254", "203.0.113.1"} },
			func(s *model.Service) bool { return reflect.DeepEqual(s.ExternalIPs, addrs("203.0.113.1")) },
			"BadAddress: spec.externalIPs[0]: 169.254.169.254 (link-local)",
		},
		"the VIP stays the destination": {
			func(s *corev1.Service) {
				s.Spec.Type, s.Annotations = corev1.ServiceTypeLoadBalancer, map[string]string{"preserve-destination": "true"}
			},
			func(s *model.Service) bool { return s.PreserveDestination }, "",
		},
		"the destination of a node port": { // winkernel takes local endpoints for it, whatever the type
			func(s *corev1.Service) {
				s.Spec.Type, s.Annotations = corev1.ServiceTypeNodePort, map[string]string{"preserve-destination": "true"}
			},
			func(s *model.Service) bool { return s.PreserveDestination }, "",
		},
		"huge annotation": {
			func(s *corev1.Service) { s.Annotations = map[string]string{"x": string(make([]byte, 1<<20))} },
			func(s *model.Service) bool { return len(s.Ports) == 1 }, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, problems := Service(web(c.edit))
			if c.problem == "" {
				expect(t, problems)
			} else {
				expect(t, problems, c.problem)
			}
			if got == nil || !c.ok(got) {
				t.Errorf("got %+v", got)
			}
		})
	}
}

func TestServiceSourceRanges(t *testing.T) {
	for _, c := range []struct {
		in       []string
		want     []string
		problems []string
	}{
		{nil, nil, nil},
		{[]string{"0.0.0.0/0"}, []string{"0.0.0.0/0"}, nil},
		{[]string{"::/0"}, []string{"::/0"}, nil},
		{[]string{" 10.0.0.0/8 ", "\t10.1.2.3/8"}, []string{"10.0.0.0/8"}, nil},
		{[]string{"10.0.0.0/33"}, nil, []string{"BadRange: spec.loadBalancerSourceRanges[0]: 10.0.0.0/33"}},
		{[]string{""}, nil, []string{`BadRange: spec.loadBalancerSourceRanges[0]: ""`}},
		{[]string{"10.0.0.1"}, nil, []string{"BadRange: spec.loadBalancerSourceRanges[0]: 10.0.0.1"}},
		{[]string{"::ffff:10.0.0.0/104", "fd00::/8"}, []string{"fd00::/8"}, []string{"BadRange: spec.loadBalancerSourceRanges[0]: ::ffff:10.0.0.0/104"}},
		{[]string{"all of them"}, nil, []string{`BadRange: spec.loadBalancerSourceRanges[0]: "all of them"`}},
	} {
		got, problems := Service(lb(func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = c.in }))
		expect(t, problems, c.problems...)
		if got.Restricted != (len(c.in) > 0) || !reflect.DeepEqual(got.SourceRanges, nets(c.want...)) {
			t.Errorf("%q: restricted %t to %v", c.in, got.Restricted, got.SourceRanges)
		}
	}
	got, problems := Service(web(func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = []string{"nonsense"} }))
	if got.Restricted || problems != nil {
		t.Errorf("source ranges of a Service without load balancer: %+v, %v", got, problems)
	}
}

func TestServiceIngress(t *testing.T) {
	got, problems := Service(lb(func(s *corev1.Service) {
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{
			{},
			{Hostname: "a.example.com"},
			{IP: "203.0.113.1"},
			{IP: "203.0.113.2", IPMode: ptr(corev1.LoadBalancerIPModeVIP)},
			{IP: "203.0.113.3", IPMode: ptr(corev1.LoadBalancerIPModeProxy)},
			{IP: "127.0.0.1", IPMode: ptr(corev1.LoadBalancerIPModeProxy)},
			{IP: "203.0.113.4", IPMode: ptr(corev1.LoadBalancerIPMode("Both"))},
			{IP: "127.0.0.1"},
			{IP: "224.0.0.1"},
			{IP: "2001:db8:cafe::1", Hostname: "b.example.com"},
		}
	}))
	expect(t, problems,
		"Invalid: status.loadBalancer.ingress[6].ipMode: Both (unknown, address ignored)",
		"BadAddress: status.loadBalancer.ingress[7].ip: 127.0.0.1 (loopback)",
		"BadAddress: status.loadBalancer.ingress[8].ip: 224.0.0.1 (multicast)")
	if want := addrs("203.0.113.1", "203.0.113.2", "2001:db8:cafe::1"); !reflect.DeepEqual(got.LoadBalancerIPs, want) {
		t.Errorf("got %v", got.LoadBalancerIPs)
	}
	got, _ = Service(web(func(s *corev1.Service) {
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.1"}}
	}))
	if got.LoadBalancerIPs != nil {
		t.Error("a ClusterIP Service has load balancer addresses")
	}
}

func TestServiceHealthCheckNodePort(t *testing.T) {
	for _, c := range []struct {
		port    int32
		policy  corev1.ServiceExternalTrafficPolicy
		want    uint16
		problem []string
	}{
		{30500, "Local", 30500, nil},
		{30500, "Cluster", 0, nil},
		{0, "Local", 0, nil},
		{70000, "Local", 0, []string{"Invalid: spec.healthCheckNodePort: 70000 (not within 1..65535)"}},
		{-1, "Local", 0, []string{"Invalid: spec.healthCheckNodePort: -1 (not within 1..65535)"}},
	} {
		got, problems := Service(lb(func(s *corev1.Service) {
			s.Spec.HealthCheckNodePort, s.Spec.ExternalTrafficPolicy = c.port, c.policy
		}))
		expect(t, problems, c.problem...)
		if got.HealthCheckNodePort != c.want {
			t.Errorf("%d with %s: %d", c.port, c.policy, got.HealthCheckNodePort)
		}
	}
}

func TestServicePorts(t *testing.T) {
	got, problems := Service(web(func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeNodePort
		s.Spec.Ports = []corev1.ServicePort{
			{Name: "zero", Port: 0},
			{Name: "minus", Port: -1},
			{Name: "large", Port: 70000},
			{Name: "odd", Port: 1, Protocol: "XTP"},
			{Name: `"; }`, Port: 2},
			{Name: "a", Port: 80, NodePort: 30080},
			{Name: "b", Port: 80},
			{Name: "a", Port: 81},
			{Name: "a", Port: 80, Protocol: "UDP", NodePort: 65536},
			{Name: "c", Port: 82, NodePort: -3},
		}
	}))
	expect(t, problems,
		"Invalid: spec.ports[0].port: 0 (not within 1..65535, port ignored)",
		"Invalid: spec.ports[1].port: -1 (not within 1..65535, port ignored)",
		"Invalid: spec.ports[2].port: 70000 (not within 1..65535, port ignored)",
		"Invalid: spec.ports[3].protocol: XTP (not TCP, UDP or SCTP; port ignored)",
		`Invalid: spec.ports[4].name: "\"; }" (not a DNS label, port ignored)`,
		"Invalid: spec.ports[6].port: 80/tcp (duplicate, the first one is used)",
		"Invalid: spec.ports[7].name: a (duplicate, the first one is used)",
		"Invalid: spec.ports[8].nodePort: 65536 (not within 1..65535)",
		"Invalid: spec.ports[9].nodePort: -3 (not within 1..65535)")
	want := []model.ServicePort{
		{Name: "a", Proto: model.TCP, Port: 80, NodePort: 30080},
		{Name: "a", Proto: model.UDP, Port: 80},
		{Name: "c", Proto: model.TCP, Port: 82},
	}
	if !reflect.DeepEqual(got.Ports, want) {
		t.Errorf("got %+v", got.Ports)
	}
	got, problems = Service(web(func(s *corev1.Service) { s.Spec.Ports[0].NodePort = 30080 }))
	expect(t, problems, "Invalid: spec.ports[0].nodePort: 30080 (only valid for types NodePort and LoadBalancer)")
	if got.Ports[0].NodePort != 0 {
		t.Error("a ClusterIP Service has a NodePort")
	}
}
