package io.polarisspark;

import java.lang.reflect.Constructor;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.spark.sql.catalyst.parser.ParseException;
import org.apache.spark.sql.catalyst.trees.CurrentOrigin;
import org.apache.spark.sql.catalyst.trees.Origin;
import scala.Option;
import scala.collection.immutable.Map;

/**
 * The tokens of a statement by the rules of Spark's lexer ({@code SqlBaseLexer.g4}), without comments. They are read
 * when they are asked for, so that the first words of a long statement cost little.
 */
final class SqlTokens {
  enum Kind {
    /** A keyword or an identifier without quotes. */
    WORD,
    /** An identifier in backticks. */
    QUOTED,
    STRING,
    NUMBER,
    SYMBOL,
    /** A string, a quoted identifier or a comment that does not end. */
    UNCLOSED,
    END
  }

  record Token(Kind kind, String text, int start, int end) {
    boolean is(String word) {
      return (kind == Kind.WORD || kind == Kind.SYMBOL) && text.equalsIgnoreCase(word);
    }

    boolean isIdentifier() {
      return kind == Kind.WORD || kind == Kind.QUOTED;
    }
  }

  private static final String CONDITION = "PARSE_SYNTAX_ERROR";
  private static final int SHOWN = 60;
  private static final Pattern SPACE =
      Pattern.compile("[ \\t\\n\\f\\r\\x0B\\xA0\\u1680\\u2000-\\u200A\\u2028\\u202F\\u205F\\u3000]+");
  private static final Pattern NUMBER =
      Pattern.compile("(?:[0-9]++(?:\\.[0-9]*+)?|\\.[0-9]++)(?![\\p{L}0-9_])");
  private static final Pattern WORD = Pattern.compile("[\\p{L}0-9_]++");

  private final String text;
  private final List<Token> read = new ArrayList<>();
  private int next;

  SqlTokens(String text) {
    this.text = text;
  }

  String text() {
    return text;
  }

  /** Returns the next token, or one after it, without consuming it. */
  Token peek(int ahead) {
    while (read.size() <= next + ahead) {
      Token last = read.isEmpty() ? null : read.get(read.size() - 1);
      boolean ended = last != null && (last.kind == Kind.END || last.kind == Kind.UNCLOSED);
      read.add(ended ? last : token(last == null ? 0 : last.end));
    }
    return read.get(next + ahead);
  }

  Token peek() {
    return peek(0);
  }

  /** Consumes a token and returns it. */
  Token take() {
    Token taken = peek();
    next++;
    return taken;
  }

  /** Returns whether the next tokens are these words or symbols, and consumes them if so. */
  boolean accept(String... words) {
    for (int i = 0; i < words.length; i++) {
      if (!peek(i).is(words[i])) {
        return false;
      }
    }
    next += words.length;
    return true;
  }

  void expect(String word, String expected) throws ParseException {
    if (!accept(word)) {
      throw error(peek(), "expected " + expected);
    }
  }

  /** Consumes the semicolons and the end of the statement. */
  void expectEnd(String expected) throws ParseException {
    while (accept(";")) {
      continue;
    }
    if (peek().kind != Kind.END) {
      throw error(peek(), "expected " + expected);
    }
  }

  /** Returns Spark's exception for a syntax error at a token. */
  ParseException error(Token at, String problem) {
    String found = at.text.length() <= SHOWN ? at.text : at.text.substring(0, SHOWN) + "...";
    String error = at.kind == Kind.END ? "end of input" : "'" + found + "'";
    String hint = at.kind == Kind.UNCLOSED ? "it is not closed" : problem;
    int line = 1 + (int) text.substring(0, at.start).chars().filter(each -> each == '\n').count();
    int column = text.codePointCount(text.lastIndexOf('\n', at.start - 1) + 1, at.start);
    Map<String, String> parameters = new Map.Map2<>("error", error, "hint", ": " + hint);
    return exception(origin(line, column), parameters);
  }

  /**
   * Creates the exception by reflection, because the constructors of the exception and of {@link Origin} differ between
   * Spark's releases.
   */
  private ParseException exception(Origin origin, Map<String, String> parameters) {
    try {
      for (Constructor<?> each : ParseException.class.getConstructors()) {
        Class<?>[] types = each.getParameterTypes();
        if (types[0] != Option.class || types[types.length - 1] != Map.class) {
          continue;
        }
        Object[] arguments = new Object[types.length];
        for (int i = 0; i < types.length; i++) {
          arguments[i] =
              types[i] == Option.class
                  ? Option.apply(text)
                  : types[i] == Origin.class
                      ? origin
                      : types[i] == String.class ? CONDITION : parameters;
        }
        return (ParseException) each.newInstance(arguments);
      }
    } catch (ReflectiveOperationException unknown) {
      throw UserError.of("syntax error: " + parameters, unknown);
    }
    throw UserError.of("syntax error: " + parameters, null);
  }

  private static Origin origin(int line, int column) {
    Origin before = CurrentOrigin.get();
    try {
      CurrentOrigin.reset();
      CurrentOrigin.setPosition(line, column);
      return CurrentOrigin.get();
    } finally {
      CurrentOrigin.set(before);
    }
  }

  private Token token(int from) {
    int start = skip(SPACE, from);
    while (text.startsWith("--", start) || isComment(start)) {
      int end = text.startsWith("--", start) ? lineEnd(start) : commentEnd(start);
      if (end < 0) {
        return token(Kind.UNCLOSED, start, start + 2);
      }
      start = skip(SPACE, end);
    }
    if (start == text.length()) {
      return token(Kind.END, start, start);
    }
    int quote = isRaw(start) ? start + 1 : start;
    char first = text.charAt(quote);
    if (first == '\'' || first == '"' || first == '`') {
      int end = closing(first, quote, first != '`' && quote == start);
      return end < 0
          ? token(Kind.UNCLOSED, start, start + 1)
          : token(first == '`' ? Kind.QUOTED : Kind.STRING, start, end);
    }
    int number = skip(NUMBER, start);
    if (number > start) {
      return token(Kind.NUMBER, start, number);
    }
    int word = skip(WORD, start);
    return word > start
        ? token(Kind.WORD, start, word)
        : token(Kind.SYMBOL, start, text.offsetByCodePoints(start, 1));
  }

  /** Returns whether a string in which a backslash is not an escape begins here, such as {@code r'...'}. */
  private boolean isRaw(int at) {
    return "rR".indexOf(text.charAt(at)) >= 0
        && (text.startsWith("'", at + 1) || text.startsWith("\"", at + 1));
  }

  /** Returns the index after the closing quote, or -1. A string with a doubled quote is two adjacent strings. */
  private int closing(char quote, int start, boolean hasEscapes) {
    for (int at = start + 1; at < text.length(); at++) {
      char each = text.charAt(at);
      if (each == '\\' && hasEscapes) {
        at++;
      } else if (each == quote && quote == '`' && text.startsWith("`", at + 1)) {
        at++;
      } else if (each == quote) {
        return at + 1;
      }
    }
    return -1;
  }

  /** A backslash continues the comment in the next line. */
  private int lineEnd(int start) {
    int end = start;
    while (end < text.length() && "\r\n".indexOf(text.charAt(end)) < 0) {
      end += text.startsWith("\\\n", end) ? 2 : 1;
    }
    return end;
  }

  private Token token(Kind kind, int start, int end) {
    return new Token(kind, text.substring(start, end), start, end);
  }

  private int skip(Pattern pattern, int start) {
    Matcher found = pattern.matcher(text).region(start, text.length());
    return found.lookingAt() ? found.end() : start;
  }

  /** Comments nest. A hint is not a comment. */
  private boolean isComment(int at) {
    return text.startsWith("/*", at) && !text.startsWith("+", at + 2);
  }

  private int commentEnd(int start) {
    int depth = 0;
    int at = start;
    while (at < text.length()) {
      if (isComment(at)) {
        depth++;
        at += 2;
      } else if (text.startsWith("*/", at)) {
        depth--;
        at += 2;
        if (depth == 0) {
          return at;
        }
      } else {
        at++;
      }
    }
    return -1;
  }
}
