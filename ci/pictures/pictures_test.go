// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/xml"
	"image/png"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// The drawings are those of the record and the code, and are XML as browsers want it.
func TestPictures(t *testing.T) {
	all, err := drawn(".")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range all {
		if got, err := os.ReadFile(name); err != nil || string(got) != want {
			t.Errorf("%s is another one (go run ./ci/pictures): %v", name, err)
		}
		for d := xml.NewDecoder(strings.NewReader(want)); ; {
			if _, err := d.Token(); err == io.EOF {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
	}
	if record := terminal("$ a <b>\n\nsaid"); !strings.Contains(record, `class="said"`) || !strings.Contains(record, "a &lt;b&gt;") || strings.Count(record, "<text") != 2 {
		t.Error(record)
	}
}

// README, drawn as GitHub does, with its pictures, is at most a screen and a half.
func TestReadmeIsShort(t *testing.T) {
	t.Chdir("../..")
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	const screen, column = 1080, 838 // pixels, on a laptop
	height, err := tall(string(text), column)
	if err != nil || height > screen*3/2 {
		t.Errorf("%d pixels: %v", height, err)
	}
	t.Logf("README is %d pixels tall, %.2f screens", height, float64(height)/screen)
	if again, err := tall(string(text)+strings.Repeat("\na\n", 60), column); err != nil || again < height+60*24 {
		t.Errorf("60 lines more: %d pixels, %v", again, err)
	}
}

// tall estimates the height of a page of Markdown: lines of 24 pixels with 7.3 pixels a
// letter, what is around headings, and pictures of a line as wide as they say.
func tall(text string, column int) (int, error) {
	picture := regexp.MustCompile(`!\[[^\]]*\]\(([^)]+)\)|<img src="([^"]+)"(?: width="(\d+)%")?`)
	noise := regexp.MustCompile(`\]\([^)]*\)|[\[\]*` + "`" + `]|<[^>]*>`)
	height, code, par := 0, false, ""
	flush := func() {
		if par != "" {
			height += 24*((len([]rune(par))*73/10+column-1)/column) + 16
		}
		par = ""
	}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		pictures := picture.FindAllStringSubmatch(line, -1)
		switch {
		case strings.HasPrefix(line, "```"):
			flush()
			code, height = !code, height+16
		case code || strings.HasPrefix(line, "    "):
			flush()
			height += 20
		case len(pictures) > 0:
			flush()
			most := 0
			for _, p := range pictures {
				wide, high, err := size(p[1] + p[2])
				if err != nil {
					return 0, err
				}
				shown := min(wide, column)
				if p[3] != "" {
					percent, _ := strconv.Atoi(p[3])
					shown = column * percent / 100
				}
				most = max(most, high*shown/wide)
			}
			height += most + 16
		case line == "":
			flush()
		case strings.HasPrefix(line, "#"):
			flush()
			height += 62
		case strings.HasPrefix(line, "|---"):
		case strings.HasPrefix(line, "|"):
			flush()
			height += 24*((len([]rune(noise.ReplaceAllString(line, "")))*73/10+column-1)/column) + 13
		default:
			par += noise.ReplaceAllString(line, "") + " "
		}
	}
	flush()
	return height, nil
}

// size returns the measures of a picture.
func size(name string) (wide, high int, err error) {
	f, err := os.Open(name)
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	if strings.HasSuffix(name, ".png") {
		c, err := png.DecodeConfig(f)
		return c.Width, c.Height, err
	}
	var head struct {
		Width  int `xml:"width,attr"`
		Height int `xml:"height,attr"`
	}
	err = xml.NewDecoder(f).Decode(&head)
	return head.Width, head.Height, err
}
