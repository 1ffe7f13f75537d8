// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/tandem-proxy/tandem/core/question"
)

// Long texts stay valid UTF-8 and, as addresses of one range, different; the whole is in the title.
func TestLongTextsOfBoxes(t *testing.T) {
	l := layouts()[0]
	seen := map[string]bool{}
	for _, text := range []string{
		"10.244.1.2:8080", "[2001:db8:1234:5678:9abc:def0:1234:5678]:30080/tcp", "[2001:db8:1234:5678:9abc:def0:1234:5679]:30080/tcp",
		"default/äöüßäöüßäöüßäöüßäöüß", "default/äöüßäöüßäöüßäöüßäöüä",
	} {
		for _, detail := range []string{"ready", "node port", "load balancer IP"} {
			most := l.room(detail)
			short := shorten(text, most)
			if n := utf8.RuneCountInString(short); !utf8.ValidString(short) || n > most || (short == text) != (utf8.RuneCountInString(text) <= most) || seen[detail+short] {
				t.Errorf("%s becomes %q beside %s", text, short, detail)
			}
			seen[detail+short] = true
		}
		var b builder
		l.drawBox(&b, "endpoint", 0, 0, text, "load balancer IP")
		if !strings.Contains(b.String(), ">"+text+"<") {
			t.Errorf("%s is not there as a whole: %s", text, b.String())
		}
	}
}

// A port that has no endpoints in a family has no line to those of the other one.
func TestAFanForEachPort(t *testing.T) {
	fronts := []question.FrontendDetail{
		{Frontend: question.Frontend{Port: "http", Proto: "tcp", Address: "10.96.0.1:80"}, Family: "IPv4"},
		{Frontend: question.Frontend{Port: "http", Proto: "tcp", Address: "*:30080"}, Family: "IPv6"},
	}
	detail := question.EndpointDetail{Port: "http", Protocol: "tcp", Address: "10.244.0.1:8080", Used: true, Share: 1}
	ends := []endpoint{{EndpointDetail: detail, Family: "IPv4", State: "ready"}}
	ports := portsOf(fronts, ends)
	if len(ports) != 2 {
		t.Fatalf("%d fans of a port in two families", len(ports))
	}
	whole := string(picture("shop/web", "Programmed", fronts, ends))
	for _, l := range layouts() {
		var first, second builder
		next := l.fan(&first, ports[0], 0, "Programmed")
		l.fan(&second, ports[1], next, "Programmed")
		if n := strings.Count(first.String(), "<path"); n != 2 {
			t.Errorf("%s: %d lines in the fan of IPv4, want 2:\n%s", l.class, n, &first)
		}
		if n := strings.Count(second.String(), "<path"); n != 1 {
			t.Errorf("%s: %d lines in the fan of IPv6, want that of the frontend:\n%s", l.class, n, &second)
		}
		if !strings.Contains(whole, first.String()+second.String()) {
			t.Errorf("%s: the picture is not its fans:\n%s", l.class, whole)
		}
	}
	var many []question.FrontendDetail
	for i := range mostFans + 3 {
		many = append(many, question.FrontendDetail{Frontend: question.Frontend{Port: fmt.Sprint(i)}})
	}
	if whole := string(picture("", "", many, nil)); !strings.Contains(whole, "and 3 more ports") || strings.Count(whole, "<circle") != mostFans*len(layouts()) {
		t.Errorf("%d ports of %d are drawn", strings.Count(whole, "<circle"), len(many))
	}
	old := portsOf([]question.FrontendDetail{{Frontend: question.Frontend{Port: "http", Proto: "tcp", Address: "10.96.0.1:80"}}}, ends)
	if len(old) != 1 {
		t.Errorf("%d fans where a version does not say the family of frontends", len(old))
	}
}

// Whatever is not markup is text, or part of an attribute.
func TestPutEscapes(t *testing.T) {
	var b builder
	b.put(`<a title="%s"%s>%s %d %v</a>`, `"><x>`, classed(`"y`), errors.New("<'z'>"), 1, markup("<b>"))
	if want := `<a title="&#34;&gt;&lt;x&gt;" class="&#34;y">&lt;&#39;z&#39;&gt; 1 <b></a>`; b.String() != want {
		t.Errorf("%s, want %s", &b, want)
	}
}
