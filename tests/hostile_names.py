"""Names made to break a page, a table or a template."""

BAD = '"><img src=x onerror=alert(1)>'
CLASS = f"=cat{BAD}</script>{{{{7*7}}}}"  # a known class
FILES = [f"{BAD}.png", "a<\u2028/script>.png", "{{7*7}}.png", "javascript:alert(1).png", "=1+1.png"]
